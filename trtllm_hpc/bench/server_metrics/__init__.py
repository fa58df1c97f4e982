"""The server's own metrics, sampled during a measurement."""
