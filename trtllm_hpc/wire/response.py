"""Types of a server's response, common to all protocols."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple


class WrongResponse(ValueError):
    """A response in a wrong format; the message completes "the server answered with ..."."""


class Part(NamedTuple):
    """The part of one text of the answer that a response contains."""

    text: str | bytes | None = None
    """Text; bytes can end within a UTF-8 character. ``None`` from a model that returns token IDs."""
    ids: Sequence[int] | None = None
    """Token IDs; ``None`` from a model that returns text."""
    thought: str = ""
    """Reasoning before the answer, which servers send in a separate field."""
    length: int | None = None
    """Number of output tokens, of this response or of the answer so far, as the model reports it."""
    log_probs: Sequence[float] = ()
    """Log probabilities: from Triton of all tokens so far, otherwise of the new tokens."""
    place: tuple[int, int] = (0, 0)
    """Indices of sequence (one of several answers to a prompt) and beam."""


@dataclass(frozen=True)
class Usage:
    """The server's token counts of a request; ``None``: not counted."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens that the server found in its KV cache, included in ``input_tokens``."""
    reasoning_tokens: int | None = None
    """Tokens of reasoning, included in ``output_tokens``."""


class Response(NamedTuple):
    """A whole answer, or one response of a stream."""

    parts: Sequence[Part] = ()
    usage: Usage | None = None
    is_last: bool = False
    """Whether the response has a finish reason (OpenAI's protocol)."""
    logits: Mapping[str, Any] = MappingProxyType({})
    """Arrays of logits by output name (Triton over gRPC)."""


def error_message(body: bytes) -> str:
    """Return the message of a JSON error, or the body itself.

    Formats: ``{"error": "..."}`` (Triton), ``{"error": {"message": "..."}}`` (OpenAI), ``{"object": "error",
    "message": "..."}`` (``trtllm-serve``) and ``{"detail": ...}`` (web frameworks).
    """
    # Triton sends the error of a stream as an event, even if there is nothing else.
    text = body[:65536].decode("utf-8", errors="replace").removeprefix("data:").strip()
    try:
        value = json.loads(text)
    except ValueError:
        return text
    while isinstance(value, dict):
        inner = next((value[key] for key in ("error", "message", "detail") if value.get(key)), None)
        if inner is None:
            return text
        value = inner
    return value if isinstance(value, str) else text
