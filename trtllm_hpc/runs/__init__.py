"""Runs: create and submit them, find them again, show their status, watch and cancel them."""
