"""Triton model ``ensemble``: without code, because Triton requires only its version folder."""
