"""Sweeps: the variants of one job file, their runs and their results."""
