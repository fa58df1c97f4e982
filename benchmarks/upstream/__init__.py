"""What this project renders, read by upstream's own Python of one release: ``python -m benchmarks.upstream``."""
