"""Check rendered files with upstream's own parsers: ``python -m benchmarks.upstream``."""
