"""Random numbers that are the same on every machine and for every version of Python and NumPy.

They come from ``numpy.random.RandomState``: its stream is frozen (NEP 19), while those of ``random`` and of
NumPy's ``Generator`` may change with any release.
"""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import NDArray

_UINT32 = 2**32
_CODES = 2**31 - 1

Codes = NDArray[np.int32]
"""A random number for each token of a prompt, which selects a word or token id: equal codes, equal tokens."""


class Stream(enum.IntEnum):
    """What is drawn. Each has its own numbers, which do not change when another draws more."""

    ORDER = 1
    INPUT_LENGTHS = 2
    OUTPUT_LENGTHS = 3
    CONTENTS = 4
    PREFIXES = 5
    BLOCKS = 6
    ARRIVALS = 7
    WARMUP_ARRIVALS = 8
    ADAPTERS = 9
    TURNS = 10
    THINK_TIMES = 11


def random_source(seed: int, stream: Stream, *keys: int) -> np.random.RandomState:
    """Return a source of random numbers; ``keys`` are integers that select one of several."""
    words = [seed, int(stream)]
    for key in keys:
        words += [len(words), *_uint32_words(key)]
    return np.random.RandomState(np.array(words, dtype=np.uint32))


def _uint32_words(number: int) -> list[int]:
    """The sign, then the absolute value in words of 32 bits, which seeds are made of."""
    rest, words = abs(number), [int(number < 0)]
    while True:
        words.append(rest % _UINT32)
        rest //= _UINT32
        if not rest:
            return words


def draw_codes(source: np.random.RandomState, count: int) -> Codes:
    """Return codes for ``count`` tokens; their range is so large that the bias of a modulo is negligible."""
    codes: Codes = source.randint(0, _CODES, count, dtype=np.int32)
    return codes
