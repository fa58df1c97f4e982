"""Requests to an engine and its answers: the types that Triton's models and the engines share.

Uses the standard library only, so that requests can be parsed without torch and sent to other ranks
unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from trtllm_hpc.errors import RequestFailed

NO_END = -1
"""The ``end_id`` of a request without an end token, which generates ``max_new_tokens`` tokens."""


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt to continue, the same on every rank; in TensorRT-LLM's terms, greedy by default."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    end_id: int = NO_END
    """The token after which generation ends; ``NO_END`` for none."""
    stop_words: tuple[tuple[int, ...], ...] = ()
    """Token ids of the words after which generation ends."""
    temperature: float = 1.0
    top_k: int = 1
    """Choose among the k likeliest tokens; 1 is greedy, 0 sets no limit."""
    top_p: float = 1.0
    """Choose among the likeliest tokens that together have this probability; 1 sets no limit."""
    repetition_penalty: float = 1.0
    """Divisor of positive logits, and factor of negative logits, of tokens in the prompt or the answer."""
    min_new_tokens: int = 0
    """Number of new tokens before the end token can be chosen."""
    seed: int = 0
    """Seed of 64 bits, unsigned; the same seed gives the same tokens in any batch."""
    return_log_probs: bool = False
    exclude_input: bool = False
    """Whether the answer omits the prompt."""
    streaming: bool = False
    """Whether responses are sent while tokens are generated; they omit the prompt."""


class Generated(NamedTuple):
    """The answer to a request so far."""

    tokens: Sequence[int]
    log_probs: Sequence[float]
    """Natural logarithm of each token's probability, before penalties and temperature; empty unless
    requested."""
    is_final: bool


class QueueFull(RequestFailed):
    """The engine's queue is full, and the client may try again later."""


Outcome = Generated | RequestFailed
Die = Callable[[str], object]
Hear = Callable[[int, Outcome], object]
"""Callback from the engine's thread with a request's number and its answer so far; must not block."""


@dataclass(frozen=True)
class Load:
    """The engine's state at one moment; the source of the metrics."""

    max_requests: int
    blocks_max: int
    tokens_per_block: int
    active: int = 0
    """Number of requests that wait or run."""
    waiting: int = 0
    blocks_used: int = 0
    scheduled: int = 0
    """Number of requests in the last step; ``context`` of them computed ``context_tokens`` of prompts."""
    context: int = 0
    context_tokens: int = 0
    generation_requests: int = 0
    iteration: int = 0
    """Number of steps since the start."""


class RankEngine(Protocol):
    """The loaded engine of one rank: ``engine`` computes a model, ``stand_in`` works without one.

    On ranks above 0 only ``follow`` is called. ``die`` is called with a sentence if the rank cannot continue.
    """

    def start(self, hear: Hear, die: Die) -> None:
        """Start to accept requests (rank 0)."""

    def submit(self, number: int, request: GenerationRequest) -> None:
        """Queue a request under a number. Raises RequestFailed if it does not fit or the queue is full."""

    def cancel(self, number: int) -> None:
        """End a request without a further ``hear``; does nothing for an unknown or finished request."""

    def load(self) -> Load:
        """Return the engine's load now."""

    def stop(self) -> None:
        """Finish the queued requests, and stop the other ranks (rank 0)."""

    def follow(self, die: Die) -> None:
        """Take part in every step until the leader stops this rank (ranks above 0)."""


def check_room(load: Load, max_queue_size: int) -> None:
    """Raise QueueFull if a new request could neither run nor wait; ``max_queue_size`` 0 sets no limit.

    Upstream's clients search messages for "Maximum queue size of" (TensorRT-LLM's executor) and for "Exceeds
    maximum queue size" (Triton), see ``test_max_queue_size.py`` of NVIDIA's tensorrtllm_backend v0.16.0.
    """
    room = 0 if load.waiting else load.max_requests - load.active
    if max_queue_size and load.waiting >= max_queue_size + room:
        raise QueueFull(
            f"Exceeds maximum queue size: {load.waiting} requests wait. "
            f"Maximum queue size of {max_queue_size} has been reached; try again later."
        )
