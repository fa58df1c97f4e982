"""Lengths of prompts and answers: drawn from distributions, and kept within what the model takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trtllm_hpc.bench.workload.draws import Stream, draws
from trtllm_hpc.bench.workload.wanted import Wanted, refused, some


@dataclass(frozen=True)
class Lengths:
    """One request's tokens."""

    input_tokens: int
    output_tokens: int


def normal_lengths(wanted: Wanted) -> list[Lengths]:
    """Lengths from the two normal distributions of the settings, rounded, at least 1."""
    workload, seed = wanted.workload, wanted.settings.seed
    inputs = _normal(
        workload.input_tokens, workload.input_tokens_stdev, wanted.count, draws(seed, Stream.INPUT_LENGTHS)
    )
    outputs = _normal(
        workload.output_tokens or wanted.settings.max_tokens,
        workload.output_tokens_stdev,
        wanted.count,
        draws(seed, Stream.OUTPUT_LENGTHS),
    )
    return [Lengths(*pair) for pair in zip(inputs, outputs, strict=True)]


def _normal(mean: float, stdev: float, count: int, source: np.random.RandomState) -> list[int]:
    drawn = mean + stdev * source.standard_normal(count)
    return [int(length) for length in np.maximum(np.rint(drawn), 1)]


def within(lengths: Sequence[Lengths], limit: int | None, before: int = 0) -> tuple[list[Lengths], list[str]]:
    """The lengths with prompts cut to the limit, and a sentence if any were.

    Args:
        before: tokens of a prefix that stands before each.

    Raises:
        ConfigError: the prefix alone is as long as the limit.
    """
    if limit is None:
        return list(lengths), []
    room = limit - before
    if room < 1:
        message = f"a prefix of {before} tokens leaves no room in prompts of at most {limit}"
        raise refused("prefix_tokens", message, value=before, hint=f"set it below {limit}")
    longer = sum(length.input_tokens > room for length in lengths)
    kept = [Lengths(min(length.input_tokens, room), length.output_tokens) for length in lengths]
    note = f"{some(longer, 'prompt')} shorter than drawn: prompts may have at most {limit} tokens."
    return kept, [note] if longer else []
