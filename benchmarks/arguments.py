"""Types of command-line arguments that several benchmarks have."""

from __future__ import annotations

import argparse


def number(text: str) -> int:
    """A whole number above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not above 0")
    return value


def numbers(text: str) -> tuple[int, ...]:
    """Such numbers, separated by commas, in order."""
    return tuple(sorted({number(part) for part in text.split(",")}))
