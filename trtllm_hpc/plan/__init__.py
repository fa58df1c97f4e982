"""Resolve a job file and a profile into a plan: layout, stages and all command lines."""
