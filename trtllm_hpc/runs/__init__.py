"""Runs: submit one, find it again, and tell, watch or cancel what becomes of it."""
