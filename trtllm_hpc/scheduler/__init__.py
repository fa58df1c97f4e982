"""Schedulers: Slurm's commands, states and pending reasons, and the local profile."""
