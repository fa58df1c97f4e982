"""Lengths of prompts and answers: drawn from distributions, and limited to what the model takes.

A histogram's file has bins of prompts and of answers::

    input: [[1, 64, 3], [65, 128, 1]]      # shortest, longest, weight
    output: [[16, 16, 1]]

or bins of pairs::

    joint: [[1, 64, 100, 200, 5], [65, 128, 10, 20, 1]]   # of the prompt, of the answer, weight

Within a bin all lengths are equally likely. The file is YAML or JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from trtllm_hpc.bench.workload.random_numbers import Stream, random_source
from trtllm_hpc.bench.workload.request import WorkloadSpec, file_error, settings_error
from trtllm_hpc.config.benchmark import Workload
from trtllm_hpc.config.files import read_tree
from trtllm_hpc.config.tree import Tree
from trtllm_hpc.errors import ConfigError

_MAX_CUT_SHARE = 0.5
_MAX_LENGTH = 10_000_000
"""Tokens; a longer length in a file is a typing error."""

Bin = tuple[float, ...]
"""Shortest and longest of one length or of two, and the weight."""


@dataclass(frozen=True)
class Lengths:
    """The tokens of one request."""

    input_tokens: int
    output_tokens: int


def draw_lengths(spec: WorkloadSpec, prefix_tokens: int = 0) -> tuple[list[Lengths], list[str]]:
    """Draw the lengths of all requests, and cut prompts to the limit less the prefix.

    They come from two normal distributions (upstream's ``token-norm-dist``), rounded, at least 1; or, for a
    histogram, from its bins (``token-from-histogram``). A sentence says how many were cut.

    Raises:
        ConfigError: the file has no bins, the prefix leaves no room, or more than half of the prompts would
            be cut to the engine's limit. Cutting to ``max_input_tokens`` is allowed: the user has set it.
    """
    bin_lists = read_bins(spec.file) if spec.workload.kind == "histogram" else []
    drawn = _bin_lengths(spec, bin_lists) if bin_lists else _normal_lengths(spec)
    limit = spec.limit
    if limit is None:
        return drawn, []
    room = limit - prefix_tokens
    if room < 1:
        message = f"a prefix of {prefix_tokens} tokens leaves no room in prompts of at most {limit}"
        raise settings_error("prefix_tokens", message, value=prefix_tokens, hint=f"set it below {limit}")
    is_engine_limit = limit == spec.max_input_len != spec.workload.max_input_tokens
    if is_engine_limit and bin_lists:
        _refuse_mostly_cut("path", _bins_share_above(bin_lists[0], room), limit)
    elif is_engine_limit:
        _refuse_mostly_cut("input_tokens", _normal_share_above(spec.workload, room), limit)
    cut = sum(length.input_tokens > room for length in drawn)
    kept = [Lengths(min(length.input_tokens, room), length.output_tokens) for length in drawn]
    return kept, [f"Prompts cut to {room} tokens: {cut:,}."] if cut else []


def _refuse_mostly_cut(key: str, share: float, limit: int) -> None:
    if share > _MAX_CUT_SHARE:
        message = (
            f"{share:.0%} of the prompts would have to be cut: the engine takes at most {limit} tokens "
            "(engine.max_input_len)"
        )
        hint = f"set shorter prompts, or cut them with max_input_tokens {limit}"
        raise settings_error(key, message, code="too-long", hint=hint)


def _normal_lengths(spec: WorkloadSpec) -> list[Lengths]:
    workload = spec.workload
    sides = (
        (Stream.INPUT_LENGTHS, workload.input_tokens, workload.input_tokens_stdev),
        (
            Stream.OUTPUT_LENGTHS,
            workload.output_tokens or spec.settings.max_tokens,
            workload.output_tokens_stdev,
        ),
    )
    drawn = [
        mean + stdev * random_source(spec.settings.seed, stream).standard_normal(spec.count)
        for stream, mean, stdev in sides
    ]
    return [Lengths(int(a), int(b)) for a, b in np.maximum(np.rint(drawn), 1).T]


def _normal_share_above(workload: Workload, tokens: int) -> float:
    """Return the expected share of prompts with more tokens than that."""
    mean, stdev = workload.input_tokens, workload.input_tokens_stdev
    return 1 - NormalDist(mean, stdev).cdf(tokens + 0.5) if stdev else float(mean > tokens)


def _bins_share_above(bins: Sequence[Bin], tokens: int) -> float:
    """Return the expected share of prompts with more tokens than that."""
    above = sum(
        weight * min(max(high - tokens, 0.0) / (high - low + 1), 1.0) for low, high, *_, weight in bins
    )
    return above / sum(each[-1] for each in bins)


def _bin_lengths(spec: WorkloadSpec, sides: Sequence[Sequence[Bin]]) -> list[Lengths]:
    streams = (Stream.INPUT_LENGTHS, Stream.OUTPUT_LENGTHS)
    drawn = [
        _draw(bins, spec.count, random_source(spec.settings.seed, stream))
        for bins, stream in zip(sides, streams, strict=False)
    ]
    return [Lengths(*(length for row in rows for length in row)) for rows in zip(*drawn, strict=True)]


def _draw(bins: Sequence[Bin], count: int, source: np.random.RandomState) -> list[list[int]]:
    """Rows of one length or two: a random number chooses the bin, one more each length."""
    table = np.array(bins, dtype=np.float64)
    uniform = source.random_sample((count, 1 + (table.shape[1] - 1) // 2))
    reached = np.cumsum(table[:, -1]) / table[:, -1].sum()
    # side="right": a bin of weight 0 is never chosen, not even by a 0.
    indices = np.searchsorted(reached, uniform[:, 0], side="right").clip(max=len(bins) - 1)
    chosen = table[indices]
    lows, highs = chosen[:, 0:-1:2], chosen[:, 1:-1:2]
    lengths = lows + np.floor(uniform[:, 1:] * (highs - lows + 1))
    rows: list[list[int]] = np.minimum(lengths, highs).astype(np.int64).tolist()
    return rows


def read_bins(path: Path) -> list[list[Bin]]:
    """Return the bins of the file: those of pairs, or those of prompts and those of answers.

    Raises ConfigError if there are none; with file and line.
    """
    root, diagnostics = read_tree(path, "histogram")
    if root is None or diagnostics:
        raise ConfigError(diagnostics)
    keys = sorted(root.data)
    if keys == ["joint"]:
        return [_bins(path, root.section("joint"), 5)]
    if keys == ["input", "output"]:
        return [_bins(path, root.section(key), 3) for key in keys]
    found = ", ".join(keys) or "nothing"
    message = f"a histogram must have the keys input and output, or joint; found {found}"
    raise file_error(path, root.places[()].line, message)


def _bins(path: Path, tree: Tree, width: int) -> list[Bin]:
    line = tree.places[()].line
    if not isinstance(tree.data, list) or not tree.data:
        hint = "write input and output, or joint, as lists of bins"
        raise file_error(path, line, "must be a list of bins", hint=hint)
    bins = [_bin(path, values, tree.places[place,].line, width) for place, values in enumerate(tree.data)]
    if not any(weights[-1] for weights in bins):
        raise file_error(path, line, "the weights of all bins are 0")
    return bins


def _bin(path: Path, values: Any, line: int | None, width: int) -> Bin:
    numbers = isinstance(values, list) and all(type(value) in (int, float) for value in values)
    if not numbers or len(values) != width:
        joint = " of the prompt, shortest, longest of the answer" if width == 5 else ""
        message = f"a bin is a list of {width} numbers: shortest, longest{joint}, weight; found {values!r}"
        raise file_error(path, line, message)
    *ends, weight = values
    for low, high in zip(ends[::2], ends[1::2], strict=True):
        if type(low) is not int or type(high) is not int or not 1 <= low <= high <= _MAX_LENGTH:
            message = (
                f"a bin's lengths must be whole numbers from 1 to {_MAX_LENGTH:,}, the shortest first; "
                f"found {low} to {high}"
            )
            raise file_error(path, line, message)
    if not 0 <= weight < float("inf"):
        raise file_error(path, line, f"a weight must be a number of at least 0; found {weight}")
    return tuple(values)
