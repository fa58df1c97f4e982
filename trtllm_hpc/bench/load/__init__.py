"""Requests sent to a server on time, and what came back."""
