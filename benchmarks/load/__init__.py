"""What ``benchmarks/load_generator.py`` is made of."""
