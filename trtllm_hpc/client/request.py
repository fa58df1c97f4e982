"""A request to a served model, and its answer."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trtllm_hpc.client.lora import Adapter

TIMEOUT_S = 120.0
RETRIES = 2
MAX_TOKENS = 16
"""Of an answer unless the request says another number; upstream's models need one."""

Prompt = str | Sequence[int]
"""A text, or the token ids of one."""

Message = Mapping[str, Any]
"""Of a chat, as OpenAI's protocol has it: ``{"role": "user", "content": "..."}``."""

OnText = Callable[[str], object]
"""Called with each part of a text as it comes."""

Counted = Literal["server", "responses"]
"""Who counted an answer's tokens; ``responses``: nobody, of a stream. Only the server is exact."""


@dataclass(frozen=True)
class Request:
    """What to ask."""

    prompt: Prompt
    options: Mapping[str, Any] = field(default_factory=dict)
    """By the names of :mod:`trtllm_hpc.client.options`: numbers, truth values, texts, or lists of texts."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """Further inputs by the served model's own names, or further keys of OpenAI's protocol."""
    adapter: Adapter | None = None
    """LoRA adapter whose weights are sent if the server does not have them."""
    stream: bool = False
    """Whether to have the text as it is generated."""
    timeout_s: float = TIMEOUT_S
    """For the whole answer."""
    retries: int = RETRIES
    """How often it is sent again if the server was not reached or lost before anything of the answer came."""
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """By which the server knows it, so that it can be ended."""
    messages: tuple[Message, ...] = ()
    """Of a chat, the last of which ``prompt`` repeats; over OpenAI's protocol only. Empty: it is no chat."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Over HTTP, or metadata over gRPC, of this request alone, such as ``traceparent``."""


@dataclass(frozen=True)
class Answer:
    """The model's answer to one prompt, and how long it took."""

    protocol: str
    """``grpc`` or ``openai``."""
    text: str
    """The first one, if there are several; empty if the model answers with token ids."""
    latency_s: float
    """From the call to the whole answer."""
    output_tokens: int | None = None
    """Tokens of the first text, with the prompt's if the answer repeats it; ``None``: unknown."""
    counted_by: Counted | None = None
    texts: tuple[str, ...] = ()
    """All of them, of beams or of ``return_sequences``."""
    token_ids: tuple[tuple[int, ...], ...] = ()
    """Of each text, if the model answers with ids."""
    first_text_s: float | None = None
    """From the call to the first text; ``None`` if the answer came as a whole."""
    is_stopped: bool = False
    """Whether it was ended early."""
    log_probs: tuple[float, ...] | None = None
    """Of each token of the first text, if asked for."""
    responses: int = 1
    """How many the server sent; in a stream usually one for each token."""
    request_id: str = ""
    """By which the server knew the request."""
    logits: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """NumPy arrays of ``context_logits`` and ``generation_logits``, if asked for; in JSON their shapes."""
