"""Disaggregated serving with ``trtllm-serve``: servers for each phase, and a process in front of them.

Sources: TensorRT-LLM's ``examples/disaggregated/README.md`` (v0.19.0 to v1.2.0), ``docs/source/features/
disagg-serving.md`` (1.2) and ``tensorrt_llm/commands/serve.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trtllm_hpc.config.engine import Engine
from trtllm_hpc.config.job import Disaggregated, JobFile, Phase
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts

SERVER = "trtllm-serve"
"""Upstream's server with OpenAI's protocol (``tensorrt_llm/commands/serve.py``)."""
CONTEXT, GENERATION = "context", "generation"
_BACKEND_KEY = "1.0.0"
"""From this release on the file names how the KV cache is sent; before, a variable did."""
_BUFFER_TOKENS = 2048
"""Upstream's own examples before that release, where the size had to be given."""
CPP_RUNTIME = "1.4.0rc1"
"""From this version on a Python transceiver is the default, which needs NIXL (TensorRT-LLM 18134)."""
BUFFER_SIZED = "1.3.0rc3"
"""From this version on upstream itself makes a buffer of ``max_seq_len`` tokens (TensorRT-LLM 11082)."""
_EVENTS = 1024
"""Upstream's own examples of events of the KV cache, without which kv_cache_aware sees no cache."""


def phases_of(phases: Disaggregated) -> Iterator[tuple[str, Phase]]:
    """Yield both phases with their names, in the order of their servers."""
    yield CONTEXT, phases.context
    yield GENERATION, phases.generation


def transfer_keys(facts: JobFacts, role: str) -> dict[str, Any]:
    """Return the LLM API's keys of a server of one phase."""
    phases = facts.job.serve.disaggregated
    assert phases is not None
    if _names_backend(facts):
        transceiver: dict[str, Any] = {"backend": phases.kv_transfer}
        if phases.kv_transfer_tokens is not None:
            transceiver["max_tokens_in_buffer"] = phases.kv_transfer_tokens
        if phases.kv_transfer == "UCX" and facts.image_is_at_least(CPP_RUNTIME):
            transceiver["transceiver_runtime"] = "CPP"
    else:
        transceiver = {"max_num_tokens": phases.kv_transfer_tokens or _BUFFER_TOKENS}
    # A context server hands the cache over after each step, which must be over then.
    overlap = {"disable_overlap_scheduler": True} if role == CONTEXT else {}
    events = {"event_buffer_max_size": _EVENTS} if phases.router == "kv_cache_aware" else {}
    return {"cache_transceiver_config": transceiver, "kv_cache_config": events, **overlap}


def with_buffer(job: JobFile) -> JobFile:
    """Return the job with a buffer of whole blocks, larger than the longest prompt where it names none.

    Without a buffer NIXL fails on long prompts up to 1.2.1, and later it is as large as max_seq_len.
    """
    phases, longest, block = job.serve.disaggregated, longest_prompt(job), block_tokens(job)
    assert phases is not None
    tokens = phases.kv_transfer_tokens or (longest and longest + 1)
    sized = phases.model_copy(update={"kv_transfer_tokens": tokens and -(-tokens // block) * block})
    return job.model_copy(update={"serve": job.serve.model_copy(update={"disaggregated": sized})})


def longest_prompt(job: JobFile) -> int | None:
    """Return the most tokens that a context server takes; ``None`` if only the model limits them."""
    phases = job.serve.disaggregated
    context = job if phases is None else job.with_phase(phases.context)
    limits = [context.engine.llm_api.get("max_seq_len", context.engine.max_seq_len)]
    limits += [] if is_chunked(context) else [num_tokens(context.engine)]
    return min((limit for limit in limits if isinstance(limit, int)), default=None)


def is_chunked(job: JobFile) -> bool:
    """Return whether prompts longer than ``max_num_tokens`` are computed in chunks."""
    return bool(job.engine.llm_api.get("enable_chunked_prefill", job.repository.chunked_context))


def num_tokens(engine: Engine) -> int:
    """Return the most tokens of a step; upstream's default is 8,192."""
    tokens = engine.llm_api.get("max_num_tokens", engine.max_num_tokens)
    return tokens if isinstance(tokens, int) else 8192


def block_tokens(job: JobFile) -> int:
    """Return the size of a block of the KV cache; upstream's default is 32."""
    cache = job.engine.llm_api.get("kv_cache_config")
    block = cache.get("tokens_per_block") if isinstance(cache, dict) else None
    return block if isinstance(block, int) and block > 0 else 32


def transfer_environment(facts: JobFacts) -> Mapping[str, str]:
    """Return the variables of all servers."""
    return {} if _names_backend(facts) else {"TRTLLM_USE_UCX_KVCACHE": "1"}


def _names_backend(facts: JobFacts) -> bool:
    return facts.release is None or facts.release.at_least(_BACKEND_KEY)


def front_command(job: JobFile) -> tuple[str, ...]:
    """Return the process in front, without its file."""
    phases = job.serve.disaggregated
    assert phases is not None
    start_s = f"--server_start_timeout={job.serve.ready_timeout_seconds}"
    return (SERVER, "disaggregated", start_s, f"--request_timeout={phases.request_timeout_seconds}")


def front_file(job: JobFile) -> dict[str, Any]:
    """Return the front's file without its own address and those of the servers."""
    phases = job.serve.disaggregated
    assert phases is not None
    router = {} if phases.router is None else {"router": {"type": phases.router}}
    servers = {f"{role}_servers": {"num_instances": it.servers, **router} for role, it in phases_of(phases)}
    return {"backend": "pytorch", **servers}
