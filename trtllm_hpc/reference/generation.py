"""Requests to the engine and its answers: the types that Triton's models and the engine share.

Standard library and NumPy only, so that requests can be parsed in tests
without torch, and sent to the other ranks as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from trtllm_hpc.errors import RequestFailed

NO_END = -1
"""The ``end_id`` for no end token: generate ``max_new_tokens`` tokens."""

Words = tuple[tuple[int, ...], ...]
"""Words as sequences of token ids."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen from the logits, in TensorRT-LLM's terms; greedy by default."""

    temperature: float = 1.0
    top_k: int = 1
    """Choose among the k likeliest tokens; 1 is greedy, 0 sets no limit."""
    top_p: float = 1.0
    """Choose among the likeliest tokens that together have this probability; 1 sets no limit."""
    repetition_penalty: float = 1.0
    """For tokens in prompt or answer, a positive logit is divided by this and a negative one multiplied."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of a token that occurred."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of a token once for each occurrence."""
    min_new_tokens: int = 0
    """The end token cannot be chosen before there are that many new tokens."""
    seed: int = 0
    """64 bits, unsigned. The same seed gives the same tokens whatever else is in the batch."""

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always chosen."""
        return self.top_k == 1


@dataclass(frozen=True)
class LoraRequest:
    """A LoRA adapter by its number, with its weights when it is sent for the first time."""

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
    """Generation ends after this token; ``NO_END``: after none."""
    pad_id: int = 0
    sampling: Sampling = field(default_factory=Sampling)
    stop_words: Words = ()
    """Generation ends after any of these."""
    bad_words: Words = ()
    """These are never generated."""
    embedding_bias: np.ndarray[Any, Any] | None = None
    """[vocabulary], float32, added to the logits."""
    beam_width: int = 1
    """Above 1: beam search, which ignores temperature, top_k, top_p and seed of ``sampling``."""
    length_penalty: float = 1.0
    """Beam search divides a finished beam's score by its length to the power of this."""
    return_log_probs: bool = False
    return_context_logits: bool = False
    return_generation_logits: bool = False
    exclude_input: bool = False
    """The answer does not repeat the prompt."""
    streaming: bool = False
    """Responses as the tokens are generated, without the prompt."""
    lora: LoraRequest | None = None

    @property
    def total_tokens(self) -> int:
        """Most tokens of prompt and answer together, in one beam."""
        return len(self.prompt) + self.max_new_tokens


class Progress(NamedTuple):
    """What was generated since the last progress of the same request; one row for each beam.

    Without streaming there is only the final one. Logits are ``None`` unless
    requested; ``context_logits`` comes once, with the first progress.
    """

    tokens: tuple[tuple[int, ...], ...]
    log_probs: tuple[tuple[float, ...], ...]
    """Natural logarithm of each token's probability, before penalties and temperature."""
    is_final: bool
    context_logits: np.ndarray[Any, Any] | None = None
    """[prompt, vocabulary], float32."""
    generation_logits: np.ndarray[Any, Any] | None = None
    """[beams, tokens, vocabulary], float32, before penalties and temperature."""

    @property
    def is_one_token(self) -> bool:
        """Whether this is one token of one sequence, and nothing else."""
        return (
            len(self.tokens) == 1
            and len(self.tokens[0]) == 1
            and self.context_logits is None
            and self.generation_logits is None
        )


class QueueFull(RequestFailed):
    """The queue is full; the client may try again later."""


class EngineLost(RequestFailed):
    """There is no engine that could answer; the client may try again later."""


class Cancelled(RequestFailed):
    """The client does not want the answer any more."""


Outcome = Progress | RequestFailed

Listener = Callable[[Outcome], object]
"""Receives the answer to a request: progress until one ``is_final``, or the reason why there is none.

Called from the engine's thread; must not block.
"""


@dataclass(frozen=True)
class Load:
    """The engine's state at one moment; the source of the metrics."""

    active: int
    """Number of waiting and running requests."""
    scheduled: int
    """Number of requests in the last step."""
    context: int
    """Number of requests whose prompt was in the last step."""
    waiting: int
    max_requests: int
    blocks_max: int
    blocks_used: int
    tokens_per_block: int
    context_tokens: int
    """Number of prompt tokens in the last step."""
    generation_requests: int
    """Number of requests that got a new token in the last step."""
    iteration: int
    """Number of steps since the start."""
