"""Logs by rank: which there are, what they say, and which rank broke first.

Log text only explains. Whether something failed is what processes and Slurm
say, never a word in a log.
"""
