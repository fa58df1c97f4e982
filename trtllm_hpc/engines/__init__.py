"""Engines of TensorRT-LLM: programs and their options, build steps, model repository, rules."""
