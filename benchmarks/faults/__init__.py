"""Parts of the benchmark ``python -m benchmarks.faults``."""
