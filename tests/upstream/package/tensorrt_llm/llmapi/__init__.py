"""Upstream's LLM API."""
