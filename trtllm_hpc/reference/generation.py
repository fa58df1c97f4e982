"""Requests to an engine and what it answers: the types that Triton's models and the engines share.

Standard library only, so that requests can be parsed without torch, and sent to the other ranks as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from trtllm_hpc.errors import RequestFailed

NO_END = -1
"""The ``end_id`` for no end token: generate ``max_new_tokens`` tokens."""


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt to continue, the same on every rank; in TensorRT-LLM's terms, greedy by default."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    end_id: int = NO_END
    """Generation ends after this token; ``NO_END``: after none."""
    stop_words: tuple[tuple[int, ...], ...] = ()
    """Token ids of words, after any of which generation ends."""
    temperature: float = 1.0
    top_k: int = 1
    """Choose among the k likeliest tokens; 1 is greedy, 0 sets no limit."""
    top_p: float = 1.0
    """Choose among the likeliest tokens that together have this probability; 1 sets no limit."""
    repetition_penalty: float = 1.0
    """For tokens in prompt or answer, a positive logit is divided by this and a negative one multiplied."""
    min_new_tokens: int = 0
    """The end token cannot be chosen before there are that many new tokens."""
    seed: int = 0
    """64 bits, unsigned. The same seed gives the same tokens whatever else is in the batch."""
    return_log_probs: bool = False
    exclude_input: bool = False
    """The answer does not repeat the prompt."""
    streaming: bool = False
    """Responses as the tokens are generated, without the prompt."""


class Generated(NamedTuple):
    """All that was generated for a request so far."""

    tokens: Sequence[int]
    log_probs: Sequence[float]
    """Natural logarithm of each token's probability, before penalties and temperature; empty if not asked."""
    is_final: bool


class QueueFull(RequestFailed):
    """The queue is full; the client may try again later."""


Outcome = Generated | RequestFailed
Die = Callable[[str], object]
Hear = Callable[[int, Outcome], object]
"""Called from the engine's thread with a request's number and what there is of its answer; does not block."""


@dataclass(frozen=True)
class Load:
    """The engine's state at one moment; the source of the metrics."""

    max_requests: int
    blocks_max: int
    tokens_per_block: int
    active: int = 0
    """Requests that wait or run."""
    waiting: int = 0
    blocks_used: int = 0
    scheduled: int = 0
    """Requests in the last step; of these, ``context`` with ``context_tokens`` of their prompts."""
    context: int = 0
    context_tokens: int = 0
    generation_requests: int = 0
    iteration: int = 0
    """Steps since the start."""


class RankEngine(Protocol):
    """One rank's loaded engine: ``engine`` computes a model, ``stand_in`` has none.

    On ranks above 0 only ``follow`` is called. ``die`` is called with a sentence if the rank cannot go on.
    """

    def start(self, hear: Hear, die: Die) -> None:
        """Rank 0: take requests from now on."""

    def submit(self, number: int, request: GenerationRequest) -> None:
        """Queue a request, by its number. Raises RequestFailed."""

    def cancel(self, number: int) -> None:
        """End a request, of which nothing is heard any more; does nothing for an unknown or finished one."""

    def load(self) -> Load:
        """What the engine does now."""

    def stop(self) -> None:
        """Rank 0: finish what is queued, stop the other ranks and return."""

    def follow(self, die: Die) -> None:
        """Ranks above 0: take part in every step until the leader stops them."""


def check_room(load: Load, max_queue_size: int) -> None:
    """Raise QueueFull for a request beyond those that can run and those that may wait (0: any number).

    Upstream's clients look for "Maximum queue size of" (TensorRT-LLM's executor) and for "Exceeds maximum
    queue size" (Triton), see ``test_max_queue_size.py`` of NVIDIA's tensorrtllm_backend v0.16.0.
    """
    room = 0 if load.waiting else load.max_requests - load.active
    if max_queue_size and load.waiting >= max_queue_size + room:
        raise QueueFull(
            f"Exceeds maximum queue size: {load.waiting} requests wait. "
            f"Maximum queue size of {max_queue_size} has been reached; try again later."
        )
