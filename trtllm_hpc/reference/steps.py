"""What one step of the engine does: the message from the leader to all ranks."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from trtllm_hpc.reference.generation import GenerationRequest, LoraRequest


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter that takes a place, from which the one before it is gone."""

    place: int
    lora: LoraRequest
    """With its weights."""


@dataclass(frozen=True)
class Admission:
    """A request gets a place in the batch and blocks of the KV cache for all its tokens."""

    slot: int
    blocks: tuple[tuple[int, ...], ...]
    """The blocks of each beam, in the order of the tokens that they hold."""
    request: GenerationRequest


@dataclass(frozen=True)
class Chunk:
    """A part of a prompt to read."""

    slot: int
    start: int
    """Index of the chunk's first token in the prompt."""
    tokens: int

    @property
    def end(self) -> int:
        """Index behind the chunk's last token."""
        return self.start + self.tokens


@dataclass(frozen=True)
class Decode:
    """A sequence that gets one more token."""

    slot: int
    token: int
    """The newest token, which the model has not seen yet."""
    position: int
    """Its index in the sequence."""


@dataclass(frozen=True)
class Step:
    """One step, in the order of its fields. Every rank carries it out; the leader alone chooses tokens."""

    released: tuple[int, ...] = ()
    """Slots whose requests have ended."""
    adapters: tuple[Adapter, ...] = ()
    """Adapters that admitted requests may need."""
    admitted: tuple[Admission, ...] = ()
    decodes: tuple[Decode, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    beams: tuple[int, ...] = ()
    """Slots of beam searches that advance by one token."""


class Signal(enum.Enum):
    """What the leader may tell the other ranks besides a step."""

    STOP = enum.auto()


Command = Step | Signal
