"""Logs by rank: listing and reading them, and finding the rank that failed first.

Log text only explains. Exit codes and Slurm decide whether something failed, never the text of a log.
"""
