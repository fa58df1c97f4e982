"""Rules of disaggregated serving with ``trtllm-serve``."""

from __future__ import annotations

from trtllm_hpc.backends.limits import longest_prompt
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.diagnostics import Diagnostics, in_job
from trtllm_hpc.config.job import Disaggregated, JobFile, Phase
from trtllm_hpc.layout import Instances, WantedGroup, place_groups
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts

_BUFFER_SIZED = "1.3.0rc3"
"""From this version on upstream itself makes a buffer of ``max_seq_len`` tokens (TensorRT-LLM 11082)."""
_OF_COPIES = ("engine", "instances")
"""Keys of a phase that only copies of Triton's model have."""


def topology_of(phases: Disaggregated, job: JobFile, cluster: ClusterProfile) -> Instances:
    """Return a group of servers for each phase."""
    wanted = [
        WantedGroup(
            role,
            phase.servers,
            job.with_phase(phase).engine.world_size,
            cluster.for_phase(role).gpus_per_node,
        )
        for role, phase in phases.roles
    ]
    spread = job.serve.placement == "spread"
    return place_groups(wanted, spread=spread, apart=cluster.phases is not None)


def phases_have_servers(facts: JobFacts) -> Diagnostics:
    """The mode disaggregated names the servers of both phases."""
    if facts.job.serve.disaggregated is None:
        message = "serve.mode disaggregated needs the servers of both phases"
        hint = "write {context: {servers: 1}, generation: {servers: 2}}"
        yield in_job("missing", "serve.disaggregated", message, hint)


def servers_can_be_split(facts: JobFacts) -> Diagnostics:
    """Servers of two phases run as steps of Slurm, behind a door, and are not renewed."""
    job, cluster, serve = facts.job, facts.cluster, facts.job.serve
    mode = serve.mode
    if cluster.scheduler == "local":
        message = f"{cluster.name!r} has no Slurm, whose steps the servers are"
        yield in_job("conflict", "serve.mode", message, "choose a profile for Slurm", mode)
    if serve.door == "none":
        message = "the front of the servers listens on its own node only, behind the door"
        yield in_job("conflict", "serve.door", message, "set serve.door to haproxy", serve.door)
    if serve.renew:
        message = "servers of two phases are not renewed: the front knows them by their first addresses"
        yield in_job("conflict", "serve.renew", message, "set it to false", serve.renew)
    phases = serve.disaggregated
    if phases is None:
        return
    needed = topology_of(phases, job, cluster).nodes
    if serve.nodes is not None and serve.nodes != needed and cluster.phases is not None:
        message = f"the servers of both phases take {needed} nodes, some for each phase as the profile says"
        hint = f"set it to {needed}, or leave it out; serve.placement: spread gives each server its own"
        yield in_job("conflict", "serve.nodes", message, hint, serve.nodes)
    elif serve.nodes is not None and serve.nodes != needed:
        message = f"the servers of both phases take {needed} nodes of {cluster.gpus_per_node} GPUs"
        hint = f"set it to {needed}, or leave it out; serve.placement: spread gives each server its own"
        yield in_job("conflict", "serve.nodes", message, hint, serve.nodes)


def kv_cache_can_be_sent(facts: JobFacts) -> Diagnostics:
    """The servers of two phases can send the KV cache to each other, also of long prompts."""
    job, phases = facts.job, facts.job.serve.disaggregated
    if phases is None:
        return
    if phases.kv_transfer == "MPI":
        message = "MPI sends within one world of ranks, and each server has a world of its own"
        yield in_job("conflict", "serve.disaggregated.kv_transfer", message, "take UCX, NIXL or DEFAULT")
    fails = facts.image_is_at_least(_BUFFER_SIZED) is False and phases.kv_transfer != "UCX"
    if fails and phases.kv_transfer_tokens is None and longest_prompt(job) is None:
        message = f"NIXL fails here on prompts longer than its buffer, before TensorRT-LLM {_BUFFER_SIZED}"
        hint = "set it to the longest prompt, or set engine.max_seq_len"
        yield in_job("missing", "serve.disaggregated.kv_transfer_tokens", message, hint)


def phases_have_no_copies(facts: JobFacts) -> Diagnostics:
    """A phase of ``trtllm-serve`` has servers, and no copies of a model of Triton."""
    phases = facts.job.serve.disaggregated
    for name, phase in () if phases is None else phases.roles:
        for key in _OF_COPIES:
            value = getattr(phase, key)
            if value != Phase.model_fields[key].get_default(call_default_factory=True):
                message = f"has no effect on a {name} phase with trtllm-serve"
                yield in_job("conflict", f"serve.disaggregated.{name}.{key}", message, "remove it", value)


RULES = (phases_have_servers, servers_can_be_split, kv_cache_can_be_sent, phases_have_no_copies)
