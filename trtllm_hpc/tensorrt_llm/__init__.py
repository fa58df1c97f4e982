"""Knowledge of TensorRT-LLM: its releases, command lines that build an engine, memory that a model needs."""
