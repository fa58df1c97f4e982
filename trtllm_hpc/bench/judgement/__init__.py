"""Whether figures may be used, and whether they keep limits."""
