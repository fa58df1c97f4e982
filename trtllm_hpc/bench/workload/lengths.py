"""Lengths of prompts and answers: drawn from distributions, and kept within what the model takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from trtllm_hpc.bench.workload.draws import Stream, draws
from trtllm_hpc.bench.workload.wanted import Wanted, refused, some

_MOST_CUT = 0.5


@dataclass(frozen=True)
class Lengths:
    """One request's tokens."""

    input_tokens: int
    output_tokens: int


def normal_longer(wanted: Wanted, tokens: int) -> float:
    """The expected share of prompts of :func:`normal_lengths` with more than so many tokens."""
    mean, stdev = wanted.workload.input_tokens, wanted.workload.input_tokens_stdev
    return 1 - NormalDist(mean, stdev).cdf(tokens + 0.5) if stdev else float(mean > tokens)


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


def refuse_cut(wanted: Wanted, key: str, longer: Callable[[int], float], before: int = 0) -> None:
    """Refuse lengths most of which would be cut to the engine's limit: that is not what was asked for.

    Cutting to ``max_input_tokens`` is the person's own wish.

    Args:
        key: the setting of the workload that says how long prompts are.
        longer: the expected share of prompts with more than so many tokens.
        before: tokens of a prefix that stands before each.

    Raises:
        ConfigError: more than half would be cut.
    """
    limit = wanted.longest_input
    if limit is None or limit == wanted.workload.max_input_tokens or limit != wanted.limit:
        return
    share = longer(limit - before)
    if share > _MOST_CUT and limit > before:
        message = (
            f"{share:.0%} of the prompts would have to be cut: the engine takes {limit} tokens at most "
            "(engine.max_input_len)"
        )
        hint = f"ask for shorter prompts, or cut them with max_input_tokens {limit}"
        raise refused(key, message, code="too-long", hint=hint)


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
