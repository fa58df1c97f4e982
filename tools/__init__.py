"""Generators of checked-in files, run with ``python -m tools.generate``. Not in the installed package."""
