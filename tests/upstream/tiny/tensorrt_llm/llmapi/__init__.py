"""The LLM API."""
