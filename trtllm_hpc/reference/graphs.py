"""CUDA graphs of the decode step.

On a GPU a decode step of a small model takes less time than Python needs to
launch its kernels one by one: 15 ms against 3 ms for 1 B parameters on an
H200. A recorded graph launches them all at once. A graph has fixed shapes, so
there is one for each number of rows and of blocks, rounded up.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

Row = tuple[int, int, int]
"""Slot, token, position."""

_log = logging.getLogger(__name__)


class DecodeInputs(NamedTuple):
    """Inputs of a decode pass on the device, one entry for each row."""

    slots: torch.Tensor
    tokens: torch.Tensor
    positions: torch.Tensor


DecodePass = Callable[[DecodeInputs, int], torch.Tensor]
"""From the inputs and the number of blocks that each row reads to logits [rows, vocabulary]."""


class DecodeGraphs:
    """Replays decode passes; records each when its shape is first needed."""

    def __init__(self, decode_pass: DecodePass, *, most_rows: int, most_blocks: int) -> None:
        self._pass = decode_pass
        self._block_sizes = _doubling(_FEWEST_BLOCKS, most_blocks)
        self._row_sizes = _row_sizes(most_rows)
        self._inputs = torch.zeros((3, most_rows), dtype=torch.long, device="cuda")
        self._staging = torch.zeros((3, most_rows), dtype=torch.long).pin_memory()
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def run(self, rows: Sequence[Row], blocks: int, *, padding: Row) -> torch.Tensor:
        """Logits of the rows, in a buffer that the next run of the same shape overwrites."""
        size = next(size for size in self._row_sizes if size >= len(rows))
        self._staging[:, :size] = torch.tensor([*rows, *[padding] * (size - len(rows))]).T
        self._inputs[:, :size].copy_(self._staging[:, :size], non_blocking=True)
        shape = (size, next(most for most in self._block_sizes if most >= blocks))
        graph, logits = self._graphs.get(shape) or self._capture(shape)
        graph.replay()
        return logits[: len(rows)]

    def capture_usual(self) -> None:
        """Record the graphs of short sequences, which every server needs."""
        started = time.perf_counter()
        for size in reversed(self._row_sizes):
            self._capture((size, self._block_sizes[0]))
        _log.info("%d CUDA graphs recorded in %.1f s", len(self._graphs), time.perf_counter() - started)

    def close(self) -> None:
        """Forget all graphs."""
        torch.cuda.synchronize()
        for graph, _ in self._graphs.values():
            graph.reset()
        self._graphs.clear()

    def _capture(self, shape: tuple[int, int]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        """Record the pass of one shape. It writes to the same places as the replay that follows."""
        rows, blocks = shape
        inputs = DecodeInputs(*self._inputs[:, :rows].unbind())
        # In the first pass of a shape, libraries choose and load kernels, which cannot be recorded.
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._pass(inputs, blocks)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # NCCL's watchdog thread queries events meanwhile, which only this mode allows.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            logits = self._pass(inputs, blocks)
        self._graphs[shape] = (graph, logits)
        return graph, logits


_FEWEST_BLOCKS = 4


def _doubling(first: int, last: int) -> tuple[int, ...]:
    """``first``, its doubles, and ``last``."""
    sizes = [first]
    while sizes[-1] < last:
        sizes.append(sizes[-1] * 2)
    return (*sizes[:-1], last)


def _row_sizes(most: int) -> tuple[int, ...]:
    """1, 2, 4, multiples of 8 up to 64, then of 32: padding costs time, a graph memory."""
    sizes = [1, 2, 4, *range(8, 65, 8), *range(96, most + 32, 32)]
    return (*(size for size in sizes if size < most), most)
