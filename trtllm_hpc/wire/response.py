"""One response of a server as typed parts; every protocol fills the same types."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple


class WrongResponse(ValueError):
    """A response that is not in the protocol's format; the message completes "the server answered with …"."""


class Part(NamedTuple):
    """What one response has of one text of the answer."""

    text: str | bytes | None = None
    """Bytes may end within a letter; ``None`` from a model that answers with token ids."""
    ids: Sequence[int] | None = None
    """Token ids; ``None`` from a model that answers with text."""
    thought: str = ""
    """What a model thinks before it answers, in a field of its own."""
    length: int | None = None
    """Output tokens as the model reports them: those of this response, or of the answer so far."""
    log_probs: Sequence[float] = ()
    """Logarithm of each token's probability: with Triton of all tokens so far, else of the new ones."""
    place: tuple[int, int] = (0, 0)
    """Indices of the sequence, if a prompt gets several answers, and of the beam."""


@dataclass(frozen=True)
class Usage:
    """The server's count of tokens for a whole request; ``None``: it has not counted them."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    """Of the prompt: those that the server found in its KV cache."""
    reasoning_tokens: int | None = None
    """Of the answer: what the model thought before."""


class Response(NamedTuple):
    """One response: an answer as a whole, or one of a stream."""

    parts: Sequence[Part] = ()
    usage: Usage | None = None
    is_last: bool = False
    """Whether it says why an answer has ended (OpenAI's protocol)."""
    logits: Mapping[str, Any] = MappingProxyType({})
    """Arrays of logits by output (Triton over gRPC)."""


def error_message(body: bytes) -> str:
    """Return the message of an error in JSON, else the body as it is.

    Triton's is ``{"error": "..."}``, OpenAI's ``{"error": {"message": "..."}}``, that of ``trtllm-serve``
    ``{"object": "error", "message": "..."}``, that of a web framework before it ``{"detail": ...}``.
    """
    # Triton puts the error of a stream into an event, even if it is the whole answer.
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
