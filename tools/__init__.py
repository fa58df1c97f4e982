"""Generators of checked-in files: ``python -m tools.generate``. Not a part of the installed package."""
