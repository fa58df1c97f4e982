"""Draws one token for each row, among the likeliest k tokens or from the whole vocabulary.

Tokens are ordered by probability, those of equal probability by id. The token is taken at which the running
sum of the probabilities exceeds ``draw * top_p`` of the total. So top_p cuts the share of the last token and
does not scale the others, as in TensorRT-LLM (as of 2024, ``kernels/samplingTopKKernels.cu`` and
``kernels/samplingTopPKernels.cu``).

Sums are of integers, so that a row's token does not depend on the order in
which a device adds, and so not on the other rows.

The random numbers depend only on a request's seed and the index of the new token: the same seed gives the
same answer in any batch, on any device and after a restart. The mixing function is SplitMix64's (Steele, Lea
and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
"""

from __future__ import annotations

import torch

_STEP = 0x9E3779B97F4A7C15
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
_WORD = 1 << 64
_FRACTION_BITS = 53


def stream(seed: int) -> int:
    """The stream of random numbers of a 64-bit seed, as a signed integer for ``uniform``."""
    value = (seed + _STEP) % _WORD
    for shift, factor in _ROUNDS:
        value = (value ^ (value >> shift)) * factor % _WORD
    return _signed(value ^ (value >> _LAST_SHIFT))


def uniform(streams: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """The number at each index of each stream: float64 in [0, 1), from int64 tensors of one shape.

    It is computed in integers that wrap around, and so is the same on every device.
    """
    value = streams + (indices + 1) * _signed(_STEP)
    for shift, factor in _ROUNDS:
        value = (value ^ _shifted(value, shift)) * _signed(factor)
    value = value ^ _shifted(value, _LAST_SHIFT)
    return _shifted(value, 64 - _FRACTION_BITS).to(torch.float64) * 2.0**-_FRACTION_BITS


def _shifted(value: torch.Tensor, bits: int) -> torch.Tensor:
    # torch copies the sign bit in; a logical shift has zeros there.
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - _WORD if value >= _WORD // 2 else value


TOP_K_MAX = 1024
"""A larger top_k is lowered to this, as in TensorRT-LLM (2024, ``kernels/samplingTopKKernels.h``)."""

_SCALE = 2.0**40
"""Weight of the likeliest token. The sum of 2**22 such weights still fits into 63 bits."""
_ONE = 0x3F800000
"""The bits of 1.0, the largest weight."""
_SHIFTS = (20, 10, 0)
_LARGEST_DIGIT = (1 << 10) - 1


def bounded(
    scores: torch.Tensor, draws: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, largest_k: int
) -> torch.Tensor:
    """Draw among each row's ``top_k`` likeliest tokens, limited further by ``top_p``.

    ``scores`` are float32 [rows, vocabulary], ``draws`` float64 [rows] in [0, 1), ``top_k`` int64 [rows] from
    1 to ``largest_k``, and ``top_p`` float32 [rows] in (0, 1].
    """
    weights = _weights(scores)
    values = weights.topk(min(largest_k, weights.shape[1]), dim=1).values
    beyond = torch.arange(values.shape[1], device=values.device) >= top_k[:, None]
    sums = _fixed(values).masked_fill_(beyond, 0).cumsum(dim=1)
    rest = _rest(sums[:, -1:], draws, top_p)
    place = _first_above(sums, rest)
    value = values.gather(1, place)
    # topk does not define the order of equal tokens, so only their weights are used.
    return _nth_equal(weights, value, place - (values > value).sum(dim=1, keepdim=True))


def unbounded(scores: torch.Tensor, draws: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Draw from the whole vocabulary, limited only by ``top_p``; arguments as in ``bounded``.

    The weight at which the sum is exceeded is found digit by digit in its
    bits, which takes a fraction of the time of sorting the vocabulary.
    """
    weights = _weights(scores)
    fixed = _fixed(weights)
    rest = _rest(fixed.sum(dim=1, keepdim=True), draws, top_p)
    # Smaller numbers for larger weights, since the sum begins with the largest.
    ranks = _ONE - weights.view(torch.int32)
    rank = torch.zeros_like(rest)
    for shift in _SHIFTS:
        digits = ((ranks >> shift) & _LARGEST_DIGIT).long()
        digit, rest = _descend(digits, fixed, rest)
        fixed.masked_fill_(digits != digit, 0)
        rank += digit << shift
    value = (_ONE - rank).int().view(torch.float32)
    return _nth_equal(weights, value, rest // _fixed(value).clamp_(min=1))


def _weights(scores: torch.Tensor) -> torch.Tensor:
    """Probabilities up to a factor: 1 for the likeliest token of each row."""
    return torch.exp(scores - scores.amax(dim=1, keepdim=True))


def _fixed(weights: torch.Tensor) -> torch.Tensor:
    return (weights * _SCALE).long()


def _rest(totals: torch.Tensor, draws: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The sum to exceed, [rows, 1]; below the total, so that some token exceeds it."""
    share = (draws * top_p.double())[:, None]
    return torch.minimum((share * totals).long(), (totals - 1).clamp_(min=0))


def _first_above(sums: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    """The index at which each row's running sum [rows, n] exceeds ``rest`` [rows, 1].

    Always below n, even if NaN among the logits made the sum meaningless.
    """
    place = torch.searchsorted(sums, rest, right=True)
    return place.clamp_(max=sums.shape[1] - 1)


def _descend(
    digits: torch.Tensor, fixed: torch.Tensor, rest: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The digit at which the sum is exceeded, and the sum less the smaller digits; both [rows, 1]."""
    shares = fixed.new_zeros(fixed.shape[0], _LARGEST_DIGIT + 1).scatter_add_(1, digits, fixed)
    sums = shares.cumsum(dim=1)
    digit = _first_above(sums, rest)
    return digit, rest - (sums.gather(1, digit) - shares.gather(1, digit))


def _nth_equal(weights: torch.Tensor, value: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """The token of each row that is number ``number``, from 0, of those with exactly this weight."""
    seen = (weights == value).cumsum(dim=1, dtype=torch.int32)
    return _first_above(seen, number.int()).squeeze(1)
