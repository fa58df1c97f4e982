"""Random numbers that are the same on every machine and for every version of Python and NumPy.

``numpy.random.RandomState`` is old, and for that very reason right here: its
stream is frozen (NEP 19), while those of ``random`` and of NumPy's
``Generator`` may change with any release.
"""

from __future__ import annotations

import enum

import numpy as np

_WORD = 2**32


class Stream(enum.IntEnum):
    """What is drawn. Each has numbers of its own, so that one does not move when another draws more."""

    ORDER = 1
    INPUT_LENGTHS = 2
    OUTPUT_LENGTHS = 3
    CONTENTS = 4
    PREFIXES = 5
    BLOCKS = 6
    ARRIVALS = 7
    WARMUP_ARRIVALS = 8


def draws(seed: int, stream: Stream, *more: int) -> np.random.RandomState:
    """A source of random numbers.

    Args:
        more: which of its kind, e.g. the repeat; any integers.
    """
    words = [seed, int(stream)]
    for number in more:
        words += [len(words), *_words(number)]
    return np.random.RandomState(np.array(words, dtype=np.uint32))


def _words(number: int) -> list[int]:
    """The number in pieces of 32 bits, which is what seeds are made of; the sign goes first."""
    rest, words = abs(number), [int(number < 0)]
    while True:
        words.append(rest % _WORD)
        rest //= _WORD
        if not rest:
            return words
