"""Checks of files and numbers: ``doctor`` makes them before submission, the preflight in the job."""
