"""Requests of given lengths, before there are words or ids to fill them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int32]
"""A random number for each token, which some word or id is chosen by: the same number, the same token."""

_CODES = 2**31 - 1


@dataclass(frozen=True)
class Shape:
    """One request; its prompt has a token for each code."""

    codes: Codes
    max_tokens: int
    due_s: float | None = None
    source: str | None = None
    prefix: int | None = None
    """Which prefix it shares with others."""
    prefix_tokens: int = 0


def draw_codes(source: np.random.RandomState, count: int) -> Codes:
    """Codes for ``count`` tokens. There are so many codes that taking them modulo any vocabulary is fair."""
    codes: Codes = source.randint(0, _CODES, count, dtype=np.int32)
    return codes
