"""Cluster profiles, and the configuration templates of the sandbox cluster."""
