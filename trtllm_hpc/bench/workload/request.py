"""One request of a workload, before it is put into a protocol's words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """What is asked: a text for text models, or token ids for the core model."""

    max_tokens: int
    """Output tokens asked for, at most."""
    prompt: str | None = None
    token_ids: tuple[int, ...] | None = None
    """Exactly one of ``prompt`` and ``token_ids`` is given."""
    input_tokens: int | None = None
    """Length of the prompt; ``None`` where nobody has counted yet."""
    input_by: str | None = None
    """Who counted, see :mod:`trtllm_hpc.bench.tokens.counting`."""
    due_s: float | None = None
    """Trace: seconds after the trace's first request."""
    source: str | None = None
    """Where it comes from, e.g. ``line 17``, ``prefix 2``; for people."""
