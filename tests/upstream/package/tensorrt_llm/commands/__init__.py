"""Upstream's command lines."""
