"""Random numbers that depend on nothing but a request's seed and the number of its new token.

So the same seed gives the same answer alone, in any batch, on any device and
after a restart. The mixing function is SplitMix64's (Steele, Lea and Flood,
"Fast splittable pseudorandom number generators", OOPSLA 2014).
"""

from __future__ import annotations

import torch

_STEP = 0x9E3779B97F4A7C15
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
_WORD = 1 << 64
_FRACTION_BITS = 53


def stream(seed: int) -> int:
    """The stream of numbers that belongs to a seed of 64 bits, as a signed integer for ``uniform``."""
    value = (seed + _STEP) % _WORD
    for shift, factor in _ROUNDS:
        value = (value ^ (value >> shift)) * factor % _WORD
    return _signed(value ^ (value >> _LAST_SHIFT))


def uniform(streams: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """The number at each index of each stream: float64 in [0, 1), from int64 tensors of one shape.

    The same on every device, as it is computed in integers that wrap around.
    """
    value = streams + (indices + 1) * _signed(_STEP)
    for shift, factor in _ROUNDS:
        value = (value ^ _shifted(value, shift)) * _signed(factor)
    value = value ^ _shifted(value, _LAST_SHIFT)
    return _shifted(value, 64 - _FRACTION_BITS).to(torch.float64) * 2.0**-_FRACTION_BITS


def _shifted(value: torch.Tensor, bits: int) -> torch.Tensor:
    # torch shifts the sign in; a logical shift has zeros there.
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - _WORD if value >= _WORD // 2 else value
