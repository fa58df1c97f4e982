"""Draws one token a row from scores, among the likeliest k tokens or from the whole vocabulary.

Tokens are ordered by probability, equal ones by number, and the token is
taken at which the running sum of the probabilities passes ``draw * top_p``
of all. So top_p cuts the last token's share and does not scale the others,
as in TensorRT-LLM (as of 2024, ``kernels/samplingTopKKernels.cu`` and
``kernels/samplingTopPKernels.cu``).

Sums are of integers, so that a row's token does not depend on the order in
which a device adds, and with it on the other rows.
"""

from __future__ import annotations

import torch

TOP_K_MAX = 1024
"""Larger bounds on the number of tokens are lowered to this.

So does TensorRT-LLM (as of 2024, ``TOP_K_MAX`` in ``kernels/samplingTopKKernels.h``).
"""

_SCALE = 2.0**40
"""What the likeliest token weighs. The sum of 2**22 such still fits into 63 bits."""
_ONE = 0x3F800000
"""The bits of 1.0, the largest weight."""
_SHIFTS = (20, 10, 0)
_LARGEST_DIGIT = (1 << 10) - 1


def bounded(
    scores: torch.Tensor, draws: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, largest_k: int
) -> torch.Tensor:
    """Draw among each row's ``top_k`` likeliest tokens, of which ``top_p`` bounds the probability again.

    Args:
        scores: float32 [rows, vocabulary].
        draws: float64 [rows], in [0, 1).
        top_k: int64 [rows], from 1 to ``largest_k``.
        top_p: float32 [rows], in (0, 1].
        largest_k: the number of tokens to look at, the same for all rows.
    """
    weights = _weights(scores)
    values = weights.topk(min(largest_k, weights.shape[1]), dim=1).values
    beyond = torch.arange(values.shape[1], device=values.device) >= top_k[:, None]
    sums = _fixed(values).masked_fill_(beyond, 0).cumsum(dim=1)
    rest = _rest(sums[:, -1:], draws, top_p)
    place = _first_above(sums, rest)
    value = values.gather(1, place)
    # topk leaves open which of equal tokens comes first; their weights alone are used.
    return _nth_equal(weights, value, place - (values > value).sum(dim=1, keepdim=True))


def unbounded(scores: torch.Tensor, draws: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Draw from the whole vocabulary, bounded by ``top_p`` only; arguments as in ``bounded``.

    The weight at which the sum is passed is found digit by digit in its bits,
    which costs a fraction of sorting the vocabulary.
    """
    weights = _weights(scores)
    fixed = _fixed(weights)
    rest = _rest(fixed.sum(dim=1, keepdim=True), draws, top_p)
    # Smaller numbers for larger weights, as the sum begins with the largest.
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
    """Probabilities but for a factor: 1 for the likeliest token of each row."""
    return torch.exp(scores - scores.amax(dim=1, keepdim=True))


def _fixed(weights: torch.Tensor) -> torch.Tensor:
    return (weights * _SCALE).long()


def _rest(totals: torch.Tensor, draws: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The sum to pass, [rows, 1]; below the total, so that a token of some weight passes it."""
    share = (draws * top_p.double())[:, None]
    return torch.minimum((share * totals).long(), (totals - 1).clamp_(min=0))


def _first_above(sums: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    """Where each row's running sum [rows, n] passes ``rest`` [rows, 1].

    Always one of the n places, even if logits that are no numbers made the sum senseless.
    """
    place = torch.searchsorted(sums, rest, right=True)
    return place.clamp_(max=sums.shape[1] - 1)


def _descend(
    digits: torch.Tensor, fixed: torch.Tensor, rest: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The digit at which the sum is passed, and what of it the smaller digits leave; both [rows, 1]."""
    shares = fixed.new_zeros(fixed.shape[0], _LARGEST_DIGIT + 1).scatter_add_(1, digits, fixed)
    sums = shares.cumsum(dim=1)
    digit = _first_above(sums, rest)
    return digit, rest - (sums.gather(1, digit) - shares.gather(1, digit))


def _nth_equal(weights: torch.Tensor, value: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """The token of each row that has exactly this weight, counted from 0 in the vocabulary's order."""
    seen = (weights == value).cumsum(dim=1, dtype=torch.int32)
    return _first_above(seen, number.int()).squeeze(1)
