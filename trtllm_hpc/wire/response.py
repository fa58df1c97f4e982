"""A server's response as typed parts. All protocols use the same types."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple


class WrongResponse(ValueError):
    """A response does not have the protocol's format. The message completes "the server answered with …"."""


class Part(NamedTuple):
    """The part of one answer text that one response contains."""

    text: str | bytes | None = None
    """Text; bytes may end within a UTF-8 character. ``None`` from a model that answers with token IDs."""
    ids: Sequence[int] | None = None
    """Token IDs; ``None`` from a model that answers with text."""
    thought: str = ""
    """Reasoning before the answer, if the server separates reasoning from the answer."""
    length: int | None = None
    """Number of output tokens that the model reports, for this response or for the answer so far."""
    log_probs: Sequence[float] = ()
    """Logarithm of each token's probability: with Triton for all tokens so far, else for new tokens only."""
    place: tuple[int, int] = (0, 0)
    """Index of the sequence (a prompt may have several answers) and index of the beam."""


@dataclass(frozen=True)
class Usage:
    """Token counts that the server reports for a whole request; ``None``: not reported."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens that the server found in its KV cache, included in input_tokens."""
    reasoning_tokens: int | None = None
    """Reasoning tokens, included in output_tokens."""


class Response(NamedTuple):
    """One response: a whole answer, or one piece of a stream."""

    parts: Sequence[Part] = ()
    usage: Usage | None = None
    is_last: bool = False
    """Whether the response contains a ``finish_reason`` (OpenAI protocol)."""
    logits: Mapping[str, Any] = MappingProxyType({})
    """Arrays of logits by name of the output (Triton over gRPC)."""


def error_message(body: bytes) -> str:
    """Return the message of an error in JSON; return a body without such a message unchanged.

    Triton sends ``{"error": "..."}``, OpenAI ``{"error": {"message": "..."}}``, ``trtllm-serve``
    ``{"object": "error", "message": "..."}``, and the web framework of a server ``{"detail": ...}``.
    """
    # For a streaming request, Triton sends an event even if the error is the whole answer.
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
