"""Lengths of prompts and answers: drawn from normal distributions, and limited to what the model takes."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from trtllm_hpc.bench.workload.random_numbers import random_source
from trtllm_hpc.bench.workload.request import WorkloadSpec, settings_error

_MAX_CUT_SHARE = 0.5


def draw_lengths(spec: WorkloadSpec, prefix_tokens: int = 0) -> tuple[list[tuple[int, int]], list[str]]:
    """Draw the tokens of each prompt and answer, and cut prompts to the limit less the prefix.

    They come from two normal distributions (upstream's ``token-norm-dist``), rounded, at least 1. A sentence
    says how many prompts were cut.

    Raises:
        ConfigError: the prefix leaves no room, or more than half of the prompts would be cut to the engine's
            limit. Cutting to ``max_input_tokens`` is allowed: the user has set it.
    """
    workload, limit = spec.workload, spec.limit
    means = workload.input_tokens, workload.output_tokens or spec.settings.max_tokens
    stdevs = workload.input_tokens_stdev, workload.output_tokens_stdev
    drawn = random_source(spec.settings.seed, "lengths").standard_normal((spec.count, 2)) * stdevs + means
    pairs: list[tuple[int, int]] = [(int(a), int(b)) for a, b in np.maximum(np.rint(drawn), 1)]
    if limit is None:
        return pairs, []
    room = limit - prefix_tokens
    if room < 1:
        message = f"a prefix of {prefix_tokens} tokens leaves no room in prompts of at most {limit}"
        raise settings_error("prefix_tokens", message, value=prefix_tokens, hint=f"set it below {limit}")
    share = _share_above(workload.input_tokens, workload.input_tokens_stdev, room)
    if share > _MAX_CUT_SHARE and limit == spec.max_input_len != workload.max_input_tokens:
        message = (
            f"{share:.0%} of the prompts would have to be cut: the engine takes at most {limit} tokens "
            "(engine.max_input_len)"
        )
        hint = f"set shorter prompts, or cut them with max_input_tokens {limit}"
        raise settings_error("input_tokens", message, code="too-long", hint=hint)
    cut = sum(length > room for length, _ in pairs)
    notes = [f"Prompts cut to {room} tokens: {cut:,}."] if cut else []
    return [(min(length, room), output) for length, output in pairs], notes


def _share_above(mean: float, stdev: float, tokens: int) -> float:
    """Return the expected share of prompts with more tokens than that."""
    return 1 - NormalDist(mean, stdev).cdf(tokens + 0.5) if stdev else float(mean > tokens)
