"""Measure the HTTP load generator against a server whose times are known."""
