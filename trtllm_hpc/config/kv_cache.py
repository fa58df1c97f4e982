"""The job file's ``kv_cache`` section, in the words of the LLM API's ``KvCacheConfig``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trtllm_hpc.config.types import Section, TokenCount

Fraction = Annotated[float, Field(gt=0, le=1)]


class KvCache(Section):
    """Size and use of the KV cache; ``null`` leaves a key to the backend's default."""

    max_tokens: TokenCount | None = None
    """Size in tokens; ``None``: as much as the memory, or a full batch, allows."""
    free_gpu_memory_fraction: Fraction | None = None
    """The KV cache's share of the GPU memory that is free after loading.

    ``None`` is the release's default: 0.9, before 0.8 it was 0.85.
    """
    enable_block_reuse: bool | None = None
    """Reuse the KV cache of a common prompt prefix; an engine needs ``engine.paged_context_fmha``."""
    host_cache_size: Annotated[int, Field(ge=0)] | None = None
    """Bytes of host memory to which blocks are moved."""
    max_attention_window: list[TokenCount] | None = None
    """Attention window in tokens: one number for all layers, or one for each."""
    sink_token_length: Annotated[int, Field(ge=0)] | None = None
    """Tokens at the beginning that every window keeps."""
    cross_kv_cache_fraction: Fraction | None = None
    """Share of the KV cache for the encoder's output."""
