"""Which request gets a place in the batch, and what the next step does.

Pure Python, without a model. The policy is TensorRT-LLM's default,
``guaranteed_no_evict``: a request is admitted, in the order of arrival, when
a slot is free and there are blocks for its prompt and its longest answer. So
a running request never has to give anything back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference.generation import GenerationRequest
from trtllm_hpc.reference.steps import Admission, Chunk, Decode, Step


@dataclass(frozen=True)
class Limits:
    """Bounds of the batch."""

    slots: int
    """Requests that run at once: ``max_batch_size``."""
    step_tokens: int
    """Tokens that one step computes, padding of prompts included: ``max_num_tokens``."""
    blocks: int
    """Blocks of the KV cache."""
    tokens_per_block: int

    def blocks_of(self, request: GenerationRequest) -> int:
        """Blocks that a request holds while it runs, all beams together."""
        return -(-request.total_tokens // self.tokens_per_block) * request.beam_width


@dataclass
class Sequence:
    """A request on its way through the engine."""

    ticket: int
    request: GenerationRequest
    slot: int | None = None
    """Its place in the batch; ``None`` while it waits."""
    blocks: list[int] = field(default_factory=list)
    read: int = 0
    """Tokens of the prompt that the model has seen."""
    new_tokens: list[int] = field(default_factory=list)

    @property
    def is_beam_search(self) -> bool:
        """Whether it advances by itself, beside the batch."""
        return self.request.beam_width > 1


class Scheduler:
    """Holds the waiting and the running requests."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._free_slots = list(reversed(range(limits.slots)))
        # Block 0 is the padding's.
        self._free_blocks = list(reversed(range(1, limits.blocks + 1)))
        self._waiting: OrderedDict[int, Sequence] = OrderedDict()
        self._running: dict[int, Sequence] = {}
        self._released: list[int] = []

    @property
    def waiting(self) -> int:
        """Requests without a place."""
        return len(self._waiting)

    @property
    def running(self) -> Mapping[int, Sequence]:
        """The requests that have a place, by slot."""
        return self._running

    @property
    def used_blocks(self) -> int:
        """Blocks that running requests hold."""
        return self.limits.blocks - len(self._free_blocks)

    def add(self, sequence: Sequence) -> None:
        """Let a request wait for its place."""
        self._waiting[sequence.ticket] = sequence

    def end(self, sequence: Sequence) -> None:
        """Take a request out, wherever it is; its place is free for the next step."""
        if sequence.slot is None:
            del self._waiting[sequence.ticket]
            return
        del self._running[sequence.slot]
        self._free_slots.append(sequence.slot)
        self._free_blocks.extend(reversed(sequence.blocks))
        self._released.append(sequence.slot)

    def plan(self) -> Step | None:
        """The next step, or ``None`` if nothing is to be done. What it plans counts as done."""
        admitted = tuple(self._admissions())
        decodes = tuple(
            Decode(slot, sequence.new_tokens[-1], len(sequence.request.prompt) + len(sequence.new_tokens) - 1)
            for slot, sequence in self._running.items()
            if sequence.new_tokens and not sequence.is_beam_search
        )
        chunks = tuple(self._chunks(self.limits.step_tokens - len(decodes)))
        beams = tuple(slot for slot, sequence in self._running.items() if sequence.is_beam_search)
        if not (decodes or chunks or beams):
            return None
        released, self._released = tuple(self._released), []
        return Step(released, admitted=admitted, decodes=decodes, chunks=chunks, beams=beams)

    def _admissions(self) -> Iterable[Admission]:
        """Give places to the first of the waiting, until one does not fit."""
        while self._waiting and self._free_slots:
            sequence = next(iter(self._waiting.values()))
            needed = self.limits.blocks_of(sequence.request)
            if needed > len(self._free_blocks):
                return
            del self._waiting[sequence.ticket]
            sequence.slot = self._free_slots.pop()
            sequence.blocks = [self._free_blocks.pop() for _ in range(needed)]
            self._running[sequence.slot] = sequence
            each = needed // sequence.request.beam_width
            rows = tuple(tuple(sequence.blocks[at : at + each]) for at in range(0, needed, each))
            yield Admission(sequence.slot, rows, sequence.request)

    def _chunks(self, budget: int) -> Iterable[Chunk]:
        """Prompts or parts of them, oldest first, while their padded rows fit into the step."""
        rows, width = 0, 0
        for slot, sequence in self._running.items():
            left = len(sequence.request.prompt) - sequence.read
            if left == 0 or sequence.is_beam_search:
                continue
            tokens = min(left, budget)
            rows, width = rows + 1, max(width, tokens)
            if tokens <= 0 or rows * width > budget:
                return
            yield Chunk(slot, sequence.read, tokens)
            sequence.read += tokens


def refuse_too_long(request: GenerationRequest, limits: Limits) -> None:
    """Refuse a request that would wait for ever.

    Raises:
        RequestFailed: the whole KV cache has too few blocks for it.
    """
    needed = limits.blocks_of(request)
    if needed > limits.blocks:
        size = limits.tokens_per_block
        raise RequestFailed(
            f"The request needs {needed * size} tokens of the KV cache, which holds {limits.blocks * size} "
            "(max_tokens_in_paged_kv_cache)."
        )
