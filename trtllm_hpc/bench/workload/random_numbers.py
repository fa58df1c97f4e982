"""Random numbers of a workload, from its seed.

The same seed and settings give the same requests at the same times, with the same version of this toolkit
and of NumPy, whose generators may change with a release (NEP 19).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int32]
"""A random number for each token of a prompt, which selects a word or token id: equal codes, equal tokens."""


def random_source(seed: int, name: str) -> np.random.Generator:
    """Return the generator of what is named: what it draws does not change when another draws more."""
    return np.random.default_rng([seed, *name.encode()])


def draw_codes(source: np.random.Generator, count: int) -> Codes:
    """Return codes for ``count`` tokens; their range is so large that the bias of a modulo is negligible."""
    return source.integers(np.iinfo(np.int32).max, size=count, dtype=np.int32)


def random_order(count: int, seed: int) -> Iterator[int]:
    """Yield all numbers below ``count`` in random order, then again in another, without end."""
    source = random_source(seed, "order")
    while True:
        yield from source.permutation(count).tolist()
