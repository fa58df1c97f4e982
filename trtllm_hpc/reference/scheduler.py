"""Decides which requests get a slot in the batch, and what the next step computes.

Pure Python, without a model. The policy is TensorRT-LLM's default, ``guaranteed_no_evict``: a request is
admitted, in the order of arrival, when a slot is free and there are blocks for its prompt and its longest
possible answer. So a running request never has to give anything back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference.generation import GenerationRequest, LoraRequest

PART_TOKENS = 128
"""Most tokens of one prompt in a step that also decodes: for these the streams of others wait."""


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter to load, in place of the one that had its slot in the cache of adapters."""

    place: int
    lora: LoraRequest
    """With its weights."""


@dataclass(frozen=True)
class Admission:
    """A request that gets a slot in the batch, and blocks of the KV cache for all its tokens."""

    slot: int
    blocks: tuple[tuple[int, ...], ...]
    """The blocks of each beam, in the order of their tokens."""
    request: GenerationRequest


@dataclass(frozen=True)
class Chunk:
    """A part of a prompt to compute."""

    slot: int
    start: int
    """Index of the chunk's first token in the prompt."""
    tokens: int

    @property
    def end(self) -> int:
        """Index after the chunk's last token."""
        return self.start + self.tokens


@dataclass(frozen=True)
class Decode:
    """A sequence that gets one more token."""

    slot: int
    token: int
    """The newest token, which the model has not computed yet."""
    position: int
    """Its index in the sequence."""


@dataclass(frozen=True)
class Step:
    """One step, carried out by every rank in the order of the fields; only the leader chooses tokens."""

    released: tuple[int, ...] = ()
    """Slots whose requests have ended."""
    adapters: tuple[Adapter, ...] = ()
    """Adapters to load before the admitted requests."""
    admitted: tuple[Admission, ...] = ()
    decodes: tuple[Decode, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    beams: tuple[int, ...] = ()
    """Slots of beam searches that advance by one token."""
    prepares: bool = False
    """Whether to prepare, while no request waits, one more thing that later requests would wait for."""


@dataclass(frozen=True)
class Limits:
    """Limits of the batch."""

    slots: int
    """Number of requests that can run at once: ``max_batch_size``."""
    step_tokens: int
    """Most tokens of one step, including the padding of prompts: ``max_num_tokens``."""
    blocks: int
    """Number of blocks of the KV cache."""
    tokens_per_block: int

    def blocks_of(self, request: GenerationRequest) -> int:
        """Number of blocks that a request holds while it runs, all beams together."""
        return -(-request.total_tokens // self.tokens_per_block) * request.beam_width


@dataclass
class Sequence:
    """A request on its way through the engine."""

    ticket: Hashable
    request: GenerationRequest
    slot: int | None = None
    """Its slot in the batch; ``None`` while it waits."""
    blocks: list[int] = field(default_factory=list)
    read: int = 0
    """Number of tokens of the prompt that were computed."""
    new_tokens: list[int] = field(default_factory=list)

    @property
    def unread(self) -> int:
        """Number of tokens of the prompt that are not computed yet."""
        return len(self.request.prompt) - self.read

    @property
    def is_beam_search(self) -> bool:
        """Whether it is computed by itself and not in the batch."""
        return self.request.beam_width > 1


class Scheduler:
    """Holds the waiting and the running requests."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._free_slots = list(reversed(range(limits.slots)))
        # Block 0 is for padding.
        self._free_blocks = list(reversed(range(1, limits.blocks + 1)))
        self._waiting: OrderedDict[Hashable, Sequence] = OrderedDict()
        self.running: dict[int, Sequence] = {}
        """The requests in the batch, by slot."""
        self._released: list[int] = []
        self._is_short = False
        """Whether the oldest waiting request found too few blocks."""
        self._is_turn_of_long = False
        """Whether the last step that had to choose read long prompts, and no short ones."""

    @property
    def waiting(self) -> int:
        """Number of requests without a slot."""
        return len(self._waiting)

    @property
    def room(self) -> int:
        """Slots that the next requests can get at once: none while earlier ones wait for blocks."""
        return 0 if self._is_short else len(self._free_slots)

    @property
    def used_blocks(self) -> int:
        """Blocks that running requests hold."""
        return self.limits.blocks - len(self._free_blocks)

    def add(self, sequence: Sequence) -> None:
        """Queue a request."""
        self._waiting[sequence.ticket] = sequence

    def end(self, sequence: Sequence) -> None:
        """Remove a request, waiting or running; its slot is free for the next step."""
        if sequence.slot is None:
            del self._waiting[sequence.ticket]
            return
        del self.running[sequence.slot]
        self._free_slots.append(sequence.slot)
        self._free_blocks.extend(reversed(sequence.blocks))
        self._released.append(sequence.slot)

    def plan(self) -> Step | None:
        """The next step, or ``None`` if there is nothing to compute. The caller must carry it out."""
        admitted = tuple(self._admissions())
        decodes = tuple(
            Decode(slot, sequence.new_tokens[-1], len(sequence.request.prompt) + len(sequence.new_tokens) - 1)
            for slot, sequence in self.running.items()
            if sequence.new_tokens and not sequence.is_beam_search
        )
        chunks = tuple(self._chunks(self.limits.step_tokens - len(decodes), is_decoding=bool(decodes)))
        beams = tuple(slot for slot, sequence in self.running.items() if sequence.is_beam_search)
        if not (decodes or chunks or beams):
            return None
        released, self._released = tuple(self._released), []
        return Step(released, admitted=admitted, decodes=decodes, chunks=chunks, beams=beams)

    def _admissions(self) -> Iterable[Admission]:
        """Admit waiting requests in order, until one does not fit."""
        self._is_short = False
        while self._waiting and self._free_slots:
            sequence = next(iter(self._waiting.values()))
            needed = self.limits.blocks_of(sequence.request)
            if needed > len(self._free_blocks):
                self._is_short = True
                return
            del self._waiting[sequence.ticket]
            sequence.slot = self._free_slots.pop()
            sequence.blocks = [self._free_blocks.pop() for _ in range(needed)]
            self.running[sequence.slot] = sequence
            each = needed // sequence.request.beam_width
            rows = tuple(tuple(sequence.blocks[at : at + each]) for at in range(0, needed, each))
            yield Admission(sequence.slot, rows, sequence.request)

    def _chunks(self, budget: int, *, is_decoding: bool) -> Iterable[Chunk]:
        """Prompts or their parts, oldest first, as long as the padded rows fit into the step's ``budget``."""
        unread = {
            slot: sequence
            for slot, sequence in self.running.items()
            if sequence.unread and not sequence.is_beam_search
        }
        if is_decoding:
            unread = self._in_turn(unread)
        most = PART_TOKENS if is_decoding else budget
        rows, width = 0, 0
        for slot, sequence in unread.items():
            tokens = min(sequence.unread, most, budget)
            rows, width = rows + 1, max(width, tokens)
            if tokens <= 0 or rows * width > budget:
                return
            yield Chunk(slot, sequence.read, tokens)
            sequence.read += tokens

    def _in_turn(self, unread: dict[int, Sequence]) -> dict[int, Sequence]:
        """Short prompts and long ones in turn: parts of both in one step would take as long as two steps."""
        turns: dict[bool, dict[int, Sequence]] = {True: {}, False: {}}
        for slot, sequence in unread.items():
            turns[len(sequence.request.prompt) > PART_TOKENS][slot] = sequence
        if not (turns[True] and turns[False]):
            return unread
        self._is_turn_of_long = not self._is_turn_of_long
        return turns[self._is_turn_of_long]


def refuse_too_long(request: GenerationRequest, limits: Limits) -> None:
    """Raise RequestFailed if the whole KV cache has too few blocks for a request."""
    needed = limits.blocks_of(request)
    if needed > limits.blocks:
        size = limits.tokens_per_block
        raise RequestFailed(
            f"The request needs {needed * size} tokens of the KV cache, which holds {limits.blocks * size} "
            "(max_tokens_in_paged_kv_cache)."
        )
