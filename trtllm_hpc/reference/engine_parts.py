"""What the leader asks of an engine, and what it gets of each step. NumPy only.

There are two: the one in ``engine`` computes a model with PyTorch; the one in ``stand_in`` has no model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from trtllm_hpc.reference.adapter_places import Sizes
from trtllm_hpc.reference.channel import Channel
from trtllm_hpc.reference.engine_config import EngineInfo
from trtllm_hpc.reference.generation import Progress
from trtllm_hpc.reference.scheduler import Limits, Step

Logits = np.ndarray[Any, np.dtype[np.float32]]


class Chosen(NamedTuple):
    """The token of one slot."""

    slot: int
    token: int
    finished: bool
    """It is the end token, completes a stop word, or is the last one allowed."""
    log_prob: float
    """Natural logarithm of its probability; 0 if no request of the step wants it."""


@dataclass(frozen=True)
class Results:
    """What rank 0 has of a step, on the host."""

    chosen: Sequence[Chosen]
    logits: Callable[[int], Logits]
    """[vocabulary], those from which a row of ``chosen`` was chosen. Valid until the next step."""
    context_logits: Mapping[int, Logits]
    """By slot, [part of the prompt, vocabulary], for the requests that want them."""
    beams: Mapping[int, Progress]
    """By slot, for the beam searches that have ended."""


def no_logits(row: int) -> Logits:
    """The ``logits`` of results without a token."""
    raise IndexError(row)


class Engine(Protocol):
    """One rank's part of a loaded engine."""

    @property
    def info(self) -> EngineInfo:
        """What its folder says of it."""

    @property
    def limits(self) -> Limits:
        """Of the batch."""

    @property
    def channel(self) -> Channel:
        """To the other ranks."""

    @property
    def sizes(self) -> Sizes:
        """Of the layers that adapters can change; empty for an engine without LoRA."""

    @property
    def is_prepared(self) -> bool:
        """Whether there is nothing left that a step with ``prepares`` could prepare."""

    def compute(self, step: Step) -> Results:
        """Rank 0: carry out a step and choose the tokens. Collective."""

    def take_part(self, step: Step) -> None:
        """Other ranks: carry out a step. Collective."""

    def release(self, slot: int) -> None:
        """Rank 0: forget the request of a slot, which is not a beam search."""

    def close(self) -> None:
        """Free what must be free before the ranks disconnect. Collective."""
