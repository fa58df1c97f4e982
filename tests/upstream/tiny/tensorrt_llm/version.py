"""The version, newer than every release."""

__version__ = "9.9.0"
