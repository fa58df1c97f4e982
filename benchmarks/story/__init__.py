"""The parts of ``benchmarks/gpu_story.py``."""
