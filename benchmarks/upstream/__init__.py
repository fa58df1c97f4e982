"""Upstream's own Python of one release reads what this project renders: ``python -m benchmarks.upstream``."""
