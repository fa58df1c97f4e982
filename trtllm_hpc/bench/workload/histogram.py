"""Lengths from a file of bins.

Either prompts and answers each have bins of their own::

    input: [[1, 64, 3], [65, 128, 1]]      # shortest, longest, weight
    output: [[16, 16, 1]]

or lengths belong together::

    joint: [[1, 64, 100, 200, 5], [65, 128, 10, 20, 1]]   # of the prompt, of the answer, weight

Within a bin all lengths are alike. The file is YAML or JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trtllm_hpc.bench.workload.draws import Stream, draws
from trtllm_hpc.bench.workload.lengths import Lengths
from trtllm_hpc.bench.workload.wanted import Wanted, misread
from trtllm_hpc.config.files import read_tree
from trtllm_hpc.config.tree import Node
from trtllm_hpc.errors import ConfigError

_MOST = 10_000_000
"""Tokens of the longest length; a typing error makes more."""
_LAYOUT = "write input and output, or joint, as lists of bins"

Bin = tuple[float, ...]
"""Shortest and longest of one length or of two, and the weight."""


def histogram_lengths(wanted: Wanted) -> list[Lengths]:
    """Lengths drawn from the bins of the settings' file.

    Raises:
        ConfigError: the file holds no bins; with file and line.
    """
    sides = read_bins(wanted.file)
    seed, count = wanted.settings.seed, wanted.count
    inputs = _drawn(sides[0], count, draws(seed, Stream.INPUT_LENGTHS))
    if len(sides) == 1:
        return [Lengths(*row) for row in inputs]
    outputs = _drawn(sides[1], count, draws(seed, Stream.OUTPUT_LENGTHS))
    return [Lengths(*row, *other) for row, other in zip(inputs, outputs, strict=True)]


def histogram_longer(wanted: Wanted, tokens: int) -> float:
    """The expected share of prompts with more than so many tokens."""
    bins = read_bins(wanted.file)[0]
    longer = sum(weight * _share(low, high, tokens) for low, high, *_, weight in bins)
    return longer / sum(each[-1] for each in bins)


def _share(low: float, high: float, tokens: int) -> float:
    return min(max(high - tokens, 0.0) / (high - low + 1), 1.0)


def read_bins(path: Path) -> list[list[Bin]]:
    """The bins of the file: those of both lengths together, or those of prompts and those of answers.

    Raises:
        ConfigError: there are none; with file and line.
    """
    root, findings = read_tree(path, "histogram")
    if root is None or findings:
        raise ConfigError(findings)
    assert isinstance(root.value, dict)
    keys = sorted(root.value)
    if keys == ["joint"]:
        return [_bins(path, root.value["joint"], 5)]
    if keys == ["input", "output"]:
        return [_bins(path, root.value[key], 3) for key in keys]
    found = ", ".join(keys) or "nothing"
    raise misread(path, root.line, f"a histogram has the keys input and output, or joint; found {found}")


def _bins(path: Path, node: Node, width: int) -> list[Bin]:
    if not isinstance(node.value, list) or not node.value:
        raise misread(path, node.line, "must be a list of bins", hint=_LAYOUT)
    bins = [_bin(path, item, width) for item in node.value]
    if not any(weights[-1] for weights in bins):
        raise misread(path, node.line, "every bin weighs 0, so that nothing can be drawn")
    return bins


def _bin(path: Path, node: Node, width: int) -> Bin:
    values = node.plain()
    numbers = isinstance(values, list) and all(type(value) in (int, float) for value in values)
    if not numbers or len(values) != width:
        words = "shortest, longest" + (
            " of the prompt, shortest, longest of the answer" if width == 5 else ""
        )
        raise misread(
            path, node.line, f"a bin is a list of {width} numbers: {words}, weight; found {values!r}"
        )
    *ends, weight = values
    for low, high in zip(ends[::2], ends[1::2], strict=True):
        if type(low) is not int or type(high) is not int or not 1 <= low <= high <= _MOST:
            message = f"a bin is from 1 to {_MOST:,} whole tokens, the shortest first; found {low} to {high}"
            raise misread(path, node.line, message)
    if not 0 <= weight < float("inf"):
        raise misread(path, node.line, f"a weight is a number from 0 on; found {weight}")
    return tuple(values)


def _drawn(bins: Sequence[Bin], count: int, source: np.random.RandomState) -> list[list[int]]:
    """Rows with a length for each pair of ends: a number chooses the bin, and one more each length."""
    table = np.array(bins, dtype=np.float64)
    uniform = source.random_sample((count, 1 + (table.shape[1] - 1) // 2))
    reached = np.cumsum(table[:, -1]) / table[:, -1].sum()
    # side="right": a bin of weight 0 is never chosen, not even by a 0.
    places = np.searchsorted(reached, uniform[:, 0], side="right").clip(max=len(bins) - 1)
    chosen = table[places]
    lows, highs = chosen[:, 0:-1:2], chosen[:, 1:-1:2]
    lengths = lows + np.floor(uniform[:, 1:] * (highs - lows + 1))
    rows: list[list[int]] = np.minimum(lengths, highs).astype(np.int64).tolist()
    return rows
