"""Disaggregated serving with ``trtllm-serve``: servers for each phase, and a process in front of them.

Sources: TensorRT-LLM's ``examples/disaggregated/README.md`` (v0.19.0 to v1.2.0), ``docs/source/features/
disagg-serving.md`` (1.2) and ``tensorrt_llm/commands/serve.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trtllm_hpc.backends import disaggregated_rules as rules
from trtllm_hpc.backends.base import Front, Rule, ServerPlan
from trtllm_hpc.backends.limits import block_tokens, longest_prompt
from trtllm_hpc.backends.llm_api import pytorch_arguments
from trtllm_hpc.backends.trtllm_serve import TrtllmServe, server_plan
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.layout import Instances
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts
from trtllm_hpc.tensorrt_llm.llm_api import SERVER

_BACKEND_KEY = "1.0.0"
"""From this release on the file names how the KV cache is sent; before, a variable did."""
_BUFFER_TOKENS = 2048
"""Upstream's own examples before that release, where the size had to be given."""
_CPP_RUNTIME = "1.4.0rc1"
"""From this version on a Python transceiver is the default, which needs NIXL (TensorRT-LLM 18134)."""
_EVENTS = 1024
"""Upstream's own examples of events of the KV cache, without which kv_cache_aware sees no cache."""


class Disaggregated(TrtllmServe):
    """Servers of both phases, on any number of nodes, behind upstream's front."""

    name = "pytorch:disaggregated"

    def rules(self) -> tuple[Rule, ...]:
        """Return the rules of ``trtllm-serve``, and of the two phases."""
        return (*super().rules(), *rules.RULES)

    def topology(self, job: JobFile, cluster: ClusterProfile) -> Instances:
        """Return a group of servers for each phase."""
        phases = job.serve.disaggregated
        # A rule refuses a job file without phases.
        return super().topology(job, cluster) if phases is None else rules.topology_of(phases, job, cluster)

    def phase_servers(self, facts: JobFacts, instances: Instances, paths: RunPaths) -> tuple[ServerPlan, ...]:
        """Return the servers of each phase, in the order of ``instances.groups``."""
        phases, job = facts.job.serve.disaggregated, _with_buffer(facts.job)
        assert phases is not None
        # Upstream's own scripts for Slurm unset it: the KV cache goes by other ways than MPI.
        environment: dict[str, str | None] = {"UCX_TLS": None}
        if not _names_backend(facts):
            environment["TRTLLM_USE_UCX_KVCACHE"] = "1"
        servers = []
        for (role, phase), group in zip(phases.roles, instances.groups, strict=True):
            of_phase = replace(facts, job=job.with_phase(phase))
            known, further = pytorch_arguments(of_phase.job, paths), _transfer_keys(of_phase, role)
            servers.append(server_plan(of_phase, group.layout, known, further, paths, role, environment))
        return tuple(servers)

    def front(self, job: JobFile) -> Front:
        """Return upstream's front."""
        phases = job.serve.disaggregated
        assert phases is not None
        start_s = f"--server_start_timeout={job.serve.ready_timeout_seconds}"
        command = (SERVER, "disaggregated", start_s, f"--request_timeout={phases.request_timeout_seconds}")
        router = {} if phases.router is None else {"router": {"type": phases.router}}
        servers = {
            f"{role}_servers": {"num_instances": phase.servers, **router} for role, phase in phases.roles
        }
        return Front(command, {"backend": "pytorch", **servers})


def _transfer_keys(facts: JobFacts, role: str) -> dict[str, Any]:
    """Return the LLM API's keys of a server of one phase."""
    phases = facts.job.serve.disaggregated
    assert phases is not None
    if _names_backend(facts):
        transceiver: dict[str, Any] = {"backend": phases.kv_transfer}
        if phases.kv_transfer_tokens is not None:
            transceiver["max_tokens_in_buffer"] = phases.kv_transfer_tokens
        if phases.kv_transfer == "UCX" and facts.image_is_at_least(_CPP_RUNTIME):
            transceiver["transceiver_runtime"] = "CPP"
    else:
        transceiver = {"max_num_tokens": phases.kv_transfer_tokens or _BUFFER_TOKENS}
    # A context server hands the cache over after each step, which must be over then.
    overlap = {"disable_overlap_scheduler": True} if role == "context" else {}
    events = {"event_buffer_max_size": _EVENTS} if phases.router == "kv_cache_aware" else {}
    return {"cache_transceiver_config": transceiver, "kv_cache_config": events, **overlap}


def _with_buffer(job: JobFile) -> JobFile:
    """Return the job with a buffer of whole blocks, larger than the longest prompt where it names none.

    Without a buffer NIXL fails on long prompts up to 1.2.1, and later it is as large as max_seq_len.
    """
    phases, longest, block = job.serve.disaggregated, longest_prompt(job), block_tokens(job)
    assert phases is not None
    tokens = phases.kv_transfer_tokens or (longest and longest + 1)
    sized = phases.model_copy(update={"kv_transfer_tokens": tokens and -(-tokens // block) * block})
    return job.model_copy(update={"serve": job.serve.model_copy(update={"disaggregated": sized})})


def _names_backend(facts: JobFacts) -> bool:
    return facts.release is None or facts.release.at_least(_BACKEND_KEY)
