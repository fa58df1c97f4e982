"""What the engine is asked and what it answers: the words that Triton's models and the engine share.

Standard library and NumPy only, so that the parsing of requests is tested
without torch, and that a request can be sent to the other ranks as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from trtllm_hpc.errors import RequestFailed

if TYPE_CHECKING:
    import numpy as np
    import torch

NO_END = -1
"""The ``end_id`` that means: generate as many tokens as were asked for."""

Words = tuple[tuple[int, ...], ...]
"""Words as sequences of token ids."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen from the logits; the defaults decode greedily.

    Names and meanings are TensorRT-LLM's.
    """

    temperature: float = 1.0
    top_k: int = 1
    """Choose among the k likeliest tokens; 1 is greedy, 0 sets no bound."""
    top_p: float = 1.0
    """Choose among the likeliest tokens that together have this probability; 1 sets no bound."""
    repetition_penalty: float = 1.0
    """Divides a positive logit, multiplies a negative one, of tokens in prompt or answer."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of a token that occurred."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of a token once for each occurrence."""
    min_new_tokens: int = 0
    """The end token cannot be chosen before so many new tokens are there."""
    seed: int = 0
    """64 bits, unsigned. The same seed gives the same tokens whatever else is in the batch."""

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.top_k == 1


@dataclass(frozen=True)
class LoraRequest:
    """A LoRA adapter: by number, and with its weights where they are sent for the first time."""

    task_id: int
    weights: np.ndarray[Any, Any] | None = None
    """[modules, values]: flattened ``in`` [rank, inputs] and then ``out`` [outputs, rank]."""
    config: np.ndarray[Any, Any] | None = None
    """[modules, 3], int32: module id, layer, rank of the adapter."""


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt to continue; the same on every rank."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    end_id: int = NO_END
    """Generation ends after this token; ``NO_END`` for none."""
    pad_id: int = 0
    sampling: Sampling = field(default_factory=Sampling)
    stop_words: Words = ()
    """Generation ends after any of these."""
    bad_words: Words = ()
    """None of these is generated."""
    embedding_bias: np.ndarray[Any, Any] | None = None
    """[vocabulary], float32, added to the logits."""
    beam_width: int = 1
    """Over 1: beam search; ``sampling``'s temperature, top_k, top_p and seed then have no meaning."""
    length_penalty: float = 1.0
    """Beam search divides a finished beam's score by its length to the power of this."""
    return_log_probs: bool = False
    return_context_logits: bool = False
    return_generation_logits: bool = False
    exclude_input: bool = False
    """The answer leaves the prompt out."""
    streaming: bool = False
    """An answer for each token as it comes, without the prompt."""
    lora: LoraRequest | None = None

    @property
    def total_tokens(self) -> int:
        """Tokens of prompt and answer together at most, in one beam."""
        return len(self.prompt) + self.max_new_tokens


@dataclass(frozen=True)
class Progress:
    """What was generated since the last progress of the same request; one row a beam.

    Without streaming there is one, the last. The logits are on the CPU and
    only there when they were asked for: ``context_logits`` [prompt,
    vocabulary] comes once, with the first progress.
    """

    tokens: tuple[tuple[int, ...], ...]
    log_probs: tuple[tuple[float, ...], ...]
    """Natural logarithm of each token's probability, before penalties and temperature."""
    cumulative: tuple[float, ...]
    """Sum of the log-probabilities of each beam from its first new token on."""
    is_final: bool
    context_logits: torch.Tensor | None = None
    generation_logits: torch.Tensor | None = None
    """[beams, tokens, vocabulary], float32, before penalties and temperature."""


class QueueFull(RequestFailed):
    """As many requests wait as may wait; the client may try again later."""


class Cancelled(RequestFailed):
    """The client did not want the answer any more."""


class Listener(Protocol):
    """Who gets the answer to a request. Called from the engine's thread; must not block."""

    def progress(self, progress: Progress) -> None:
        """Take what was generated; the last call has ``is_final``."""

    def failed(self, error: RequestFailed) -> None:
        """Take the reason why there is no answer; the last call."""


@dataclass(frozen=True)
class Load:
    """What the engine does at one moment; the source of the metrics."""

    active: int
    """Requests that wait or run."""
    scheduled: int
    """Requests in the last step."""
    context: int
    """Requests whose prompt the last step read."""
    waiting: int
    max_requests: int
    blocks_max: int
    blocks_used: int
    tokens_per_block: int
    context_tokens: int
    """Prompt tokens that the last step read."""
    generation_requests: int
    """Requests that got a token of their answer in the last step."""
    iteration: int
    """Steps since the start."""


class Service(Protocol):
    """The engine as Triton's model sees it. All methods return at once and may be called from any thread."""

    def submit(self, requests: Sequence[GenerationRequest], listeners: Sequence[Listener]) -> list[int]:
        """Queue requests that belong together, all or none; returns a ticket for each.

        Raises:
            RequestFailed: the queue is full.
        """

    def cancel(self, ticket: int, *, keep: bool) -> None:
        """End a request and free its place; an unknown or finished one is passed over.

        With ``keep`` its listener gets what was generated so far as the final
        progress, else a failure.
        """

    def load(self) -> Load:
        """What is going on."""
