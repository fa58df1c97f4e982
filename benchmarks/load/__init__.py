"""The parts of ``benchmarks/load_generator.py``."""
