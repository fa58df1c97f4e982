"""CUDA graphs of the passes that every request needs.

On a GPU a pass of a small model takes less time than Python needs to launch its kernels one by one: 15 ms
against 3 ms for 1 B parameters on an H200. A recorded graph launches them all at once. A graph has fixed
shapes, so there is one for each number of rows or tokens, and of blocks, rounded up.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch

from trtllm_hpc.reference import attention
from trtllm_hpc.reference.stop_words import to_device

Row = tuple[int, int, int]
"""Slot, token, position."""

Shape = tuple[int, int]
"""Rows or tokens of a pass, and the blocks that each row reads."""

_log = logging.getLogger(__name__)


class DecodeInputs(NamedTuple):
    """Inputs of a decode pass on the device, one entry for each row."""

    slots: torch.Tensor
    tokens: torch.Tensor
    positions: torch.Tensor


class PromptInputs(NamedTuple):
    """Inputs of a pass over a part of one prompt on the device, padded on the left."""

    tokens: torch.Tensor
    positions: torch.Tensor
    real: torch.Tensor
    """Not 0 where there is a token."""
    slot: torch.Tensor
    """[1]."""


DecodePass = Callable[[DecodeInputs, int], torch.Tensor]
"""From the inputs and the number of blocks that each row reads to logits [rows, vocabulary]."""

PromptPass = Callable[[PromptInputs, int], torch.Tensor]
"""From the inputs and the number of blocks that they read to logits [1, vocabulary]."""


class _Graphs(ABC):
    """Recorded passes by their shape."""

    def __init__(self, tokens_per_block: int) -> None:
        self._tokens_per_block = tokens_per_block
        self._pool = torch.cuda.graph_pool_handle()
        self._recorded: dict[Shape, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        self._later: deque[Shape] = deque()

    @property
    def is_complete(self) -> bool:
        """Whether all graphs are recorded that most servers need."""
        return not self._later

    def record_usual(self) -> None:
        """Record the graphs that the first requests need; the others follow with ``record_next``."""
        started = time.perf_counter()
        first, later = self._usual()
        for shape in first:
            self._replay(shape)
        self._later.extend(later)
        took_s = time.perf_counter() - started
        _log.info("%d CUDA graphs recorded in %.1f s; %d to follow", len(first), took_s, len(later))

    def record_next(self) -> None:
        """Record one more graph, unless there are all."""
        if self._later:
            self._replay(self._later.popleft())

    @abstractmethod
    def _usual(self) -> tuple[list[Shape], list[Shape]]:
        """The graphs that most servers need: those to record first, and the others."""

    @abstractmethod
    def _pass_of(self, shape: Shape) -> torch.Tensor:
        """Run the pass of a shape on its inputs."""

    def _replay(self, shape: Shape) -> torch.Tensor:
        """Replay the pass of a shape, recorded at its first use; the next replay overwrites the result."""
        if shape not in self._recorded:
            is_long = shape[1] * self._tokens_per_block >= _PLANNED_FROM
            with attention.planned() if is_long else nullcontext():
                self._record(shape)
        graph, result = self._recorded[shape]
        graph.replay()
        return result

    def close(self) -> None:
        torch.cuda.synchronize()
        for graph, _ in self._recorded.values():
            graph.reset()
        self._recorded.clear()

    def _record(self, shape: Shape) -> None:
        # In the first pass of a shape, libraries choose and load kernels, which cannot be recorded.
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._pass_of(shape)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # NCCL's watchdog thread queries events meanwhile, which only this mode allows.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = self._pass_of(shape)
        self._recorded[shape] = (graph, result)


class DecodeGraphs(_Graphs):
    """Passes that decode one token of each row."""

    def __init__(
        self, decode_pass: DecodePass, *, most_rows: int, most_blocks: int, tokens_per_block: int
    ) -> None:
        super().__init__(tokens_per_block)
        self._pass = decode_pass
        self._block_sizes = _doubling(_FEWEST_BLOCKS, most_blocks)
        self._row_sizes = _row_sizes(most_rows)
        self._inputs = torch.zeros((3, most_rows), dtype=torch.long, device="cuda")
        self._staging = torch.zeros((3, most_rows), dtype=torch.long).pin_memory()

    def run(self, rows: Sequence[Row], blocks: int, *, padding: Row) -> torch.Tensor:
        """Logits of the rows, in a buffer that the next run of the same shape overwrites."""
        size = next(size for size in self._row_sizes if size >= len(rows))
        self._staging[:, :size] = torch.tensor([*rows, *[padding] * (size - len(rows))]).T
        self._inputs[:, :size].copy_(self._staging[:, :size], non_blocking=True)
        return self._replay((size, _at_least(blocks, self._block_sizes)))[: len(rows)]

    def _usual(self) -> tuple[list[Shape], list[Shape]]:
        """Short sequences: first 1, 2, 4, 8 rows and so on; the sizes between these only save padding."""
        shapes = [(size, self._block_sizes[0]) for size in reversed(self._row_sizes)]
        first = _doubling(1, self._row_sizes[-1])
        return [it for it in shapes if it[0] in first], [it for it in shapes if it[0] not in first]

    def _pass_of(self, shape: Shape) -> torch.Tensor:
        rows, blocks = shape
        return self._pass(DecodeInputs(*self._inputs[:, :rows].unbind()), blocks)


class PromptGraphs(_Graphs):
    """Passes over a part of one prompt: the first token of a lone request comes after a few decode steps."""

    def __init__(
        self, prompt_pass: PromptPass, *, most_tokens: int, most_blocks: int, tokens_per_block: int
    ) -> None:
        super().__init__(tokens_per_block)
        self._pass = prompt_pass
        self._widths = _doubling(min(_NARROWEST, most_tokens), most_tokens)
        self._block_sizes = _doubling(1, most_blocks)
        self._inputs = torch.zeros((3, most_tokens), dtype=torch.long, device="cuda")
        self._slot = torch.zeros(1, dtype=torch.long, device="cuda")

    def run(self, tokens: Sequence[int], start: int, slot: int) -> torch.Tensor:
        """Logits [1, vocabulary] after a part of a prompt that begins at ``start``."""
        count, width = len(tokens), _at_least(len(tokens), self._widths)
        rows = torch.zeros((3, width), dtype=torch.long)
        rows[0, width - count :] = torch.tensor(tokens)
        rows[1, width - count :] = torch.arange(start, start + count)
        rows[2, width - count :] = 1
        self._inputs[:, :width].copy_(to_device(rows, self._inputs.device))
        self._slot.copy_(to_device(torch.tensor([slot]), self._inputs.device))
        blocks = -(-(start + count) // self._tokens_per_block)
        # Copied: the next part may have the same shape.
        return self._replay((width, _at_least(blocks, self._block_sizes))).clone()

    def _usual(self) -> tuple[list[Shape], list[Shape]]:
        """Short prompts first, then the later parts of a long one."""
        shapes = [
            (width, _at_least(-(-width // self._tokens_per_block), self._block_sizes))
            for width in reversed(self._widths)
        ]
        widest, its_blocks = shapes[0]
        return shapes, [(widest, blocks) for blocks in self._block_sizes if blocks > its_blocks]

    def _pass_of(self, shape: Shape) -> torch.Tensor:
        width, blocks = shape
        tokens, positions, real = self._inputs[:, :width].unbind()
        return self._pass(PromptInputs(tokens, positions, real, self._slot), blocks)


def _at_least(size: int, sizes: Sequence[int]) -> int:
    return next(each for each in sizes if each >= size)


_NARROWEST = 32
"""Tokens of the narrowest graph of a prompt."""

_FEWEST_BLOCKS = 4

_PLANNED_FROM = 512
"""Tokens of a row from which its attention is planned; below, it would only make the start longer."""


def _doubling(first: int, last: int) -> tuple[int, ...]:
    """``first``, its doubles as far as they are well below ``last``, and ``last``."""
    sizes = [first]
    while sizes[-1] * 2 <= last * 0.8:
        sizes.append(sizes[-1] * 2)
    return (*(size for size in sizes if size < last), last)


def _row_sizes(most: int) -> tuple[int, ...]:
    """1, 2, 4, multiples of 8 up to 64, then of 32: padding costs time, a graph memory."""
    sizes = [1, 2, 4, *range(8, 65, 8), *range(96, most + 32, 32)]
    return (*(size for size in sizes if size < most), most)
