"""Limits of the LLM API on PyTorch, by the job file's own keys and by ``engine.llm_api``."""

from __future__ import annotations

from trtllm_hpc.config.engine import Engine
from trtllm_hpc.config.job import JobFile


def longest_prompt(job: JobFile) -> int | None:
    """Return the most tokens that a context server takes; ``None`` if only the model limits them."""
    phases = job.serve.disaggregated
    context = job if phases is None else job.with_phase(phases.context)
    limits = [context.engine.llm_api.get("max_seq_len", context.engine.max_seq_len)]
    limits += [] if is_chunked(context) else [num_tokens(context.engine)]
    return min((limit for limit in limits if isinstance(limit, int)), default=None)


def is_chunked(job: JobFile) -> bool:
    """Return whether prompts longer than ``max_num_tokens`` are computed in chunks."""
    return bool(job.engine.llm_api.get("enable_chunked_prefill", job.engine.enable_chunked_prefill))


def num_tokens(engine: Engine) -> int:
    """Return the most tokens of a step; upstream's default is 8,192."""
    tokens = engine.llm_api.get("max_num_tokens", engine.max_num_tokens)
    return tokens if isinstance(tokens, int) else 8192


def block_tokens(job: JobFile) -> int:
    """Return the size of a block of the KV cache; upstream's default is 32."""
    cache = job.engine.llm_api.get("kv_cache_config")
    block = cache.get("tokens_per_block") if isinstance(cache, dict) else None
    return block if isinstance(block, int) and block > 0 else 32
