"""Disaggregated serving with ``trtllm-serve``: servers for each phase, and a process in front of them.

Sources: TensorRT-LLM's ``examples/disaggregated/README.md`` (v0.19.0 to v1.2.0), ``docs/source/features/
disagg-serving.md`` (1.2) and ``tensorrt_llm/commands/serve.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trtllm_hpc.config.job import Disaggregated, JobFile, Phase
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts

SERVER = "trtllm-serve"
"""Upstream's server with OpenAI's protocol (``tensorrt_llm/commands/serve.py``)."""
CONTEXT, GENERATION = "context", "generation"
_BACKEND_KEY = "1.0.0"
"""From this release on the file names how the KV cache is sent; before, a variable did."""
_BUFFER_TOKENS = 2048
"""Upstream's own examples before that release, where the size had to be given."""


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
    else:
        transceiver = {"max_num_tokens": phases.kv_transfer_tokens or _BUFFER_TOKENS}
    # A context server hands the cache over after each step, which must be over then.
    overlap = {"disable_overlap_scheduler": True} if role == CONTEXT else {}
    return {"cache_transceiver_config": transceiver, **overlap}


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
