"""Sweeps: the variants of one job file, their runs, and what they have in common."""
