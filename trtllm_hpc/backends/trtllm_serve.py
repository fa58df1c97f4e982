"""``trtllm-serve``: upstream's own server with OpenAI's protocol, with a checkpoint or an engine.

A disaggregated run has servers for each phase and a front before them. Sources: TensorRT-LLM's
``examples/disaggregated/README.md`` (v0.19.0 to v1.2.0), ``docs/source/features/disagg-serving.md`` (1.2) and
``tensorrt_llm/commands/serve.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trtllm_hpc.backends import tensorrt_llm_rules
from trtllm_hpc.backends.base import FrontPlan, ServerPlan
from trtllm_hpc.backends.llm_api import LAUNCHER, PyTorchBackend, given, pytorch_arguments, yaml_text
from trtllm_hpc.backends.tensorrt_llm_rules import block_tokens, longest_prompt
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.diagnostics import Diagnostics, in_job
from trtllm_hpc.config.job import Disaggregated as Phases
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.config.layers import merged
from trtllm_hpc.config.rules import Excludes, Requires, Rule
from trtllm_hpc.layout import Instances, Layout, WantedGroup, place_groups
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.server_spec import ServerSpec, literal
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts
from trtllm_hpc.tensorrt_llm.llm_api import FRONT, SERVER, unknown_keys, wrong_values

OPTIONS = {
    "tokenizer": "--tokenizer",
    "backend": "--backend",
    "tensor_parallel_size": "--tp_size",
    "pipeline_parallel_size": "--pp_size",
    "moe_expert_parallel_size": "--ep_size",
    "gpus_per_node": "--gpus_per_node",
    "max_batch_size": "--max_batch_size",
    "max_num_tokens": "--max_num_tokens",
    "max_seq_len": "--max_seq_len",
    "max_beam_width": "--max_beam_width",
}
"""Options of ``trtllm-serve`` in every release that has the launcher. Other arguments go into the file: the
option ``--kv_cache_free_gpu_memory_fraction``, for example, has no effect beside a ``kv_cache_config``."""


class TrtllmServe(PyTorchBackend):
    """``trtllm-serve`` with a checkpoint, on PyTorch."""

    rules: tuple[Rule, ...] = (
        tensorrt_llm_rules.server_is_there,
        *tensorrt_llm_rules.RULES,
        tensorrt_llm_rules.values_are_taken,
    )

    def servers(self, facts: JobFacts, instances: Instances, paths: RunPaths) -> tuple[ServerPlan, ...]:
        """Return the command of every rank; the launcher runs it on the first rank only."""
        known = pytorch_arguments(facts.job, paths)
        return (server_plan(facts, instances.layout, known, {}, paths),)


def server_plan(
    facts: JobFacts,
    layout: Layout,
    known: dict[str, Any],
    further: dict[str, Any],
    paths: RunPaths,
    role: str | None = None,
    environment: dict[str, str | None] | None = None,
) -> ServerPlan:
    """Return ``trtllm-serve`` with its options and its file.

    Args:
        known: the LLM API's arguments from the job file's own keys.
        further: further arguments, which go only into the file.
        role: the server's phase in a disaggregated run; each phase has a file of its own.
    """
    job, model = facts.job, known["model"]
    if layout.gpus_per_node:
        known["gpus_per_node"] = layout.ranks_per_node
    # Leave out options that llm_api sets: until 1.2 the file overrides options, and later options the file.
    own_keys = known.keys() - job.engine.llm_api.keys()
    options = [f"{option}={known[key]}" for key, option in OPTIONS.items() if key in own_keys]
    file = f"--extra_llm_api_options={paths.llm_api(role)}"
    words = [SERVER, *map(literal, (model, *options, file)), "--host={address}", "--port={port}"]
    rest = {key: value for key, value in known.items() if key not in ("model", *OPTIONS)}
    text = yaml_text(given(merged(rest, further)), job.engine.llm_api)
    # Without a launcher each server would spawn its workers by MPI, which Slurm's PMIx does not offer.
    launcher = LAUNCHER if facts.cluster.scheduler == "slurm" else None
    spec = ServerSpec(
        driver="openai",
        leader=words,
        environment=environment or {},
        launcher=launcher,
        model=model,
        tokenizer=known.get("tokenizer"),
    )
    return ServerPlan(spec, text)


_OLDEST = "1.0.0"
"""First release whose servers read the transport of the KV cache from their file; before, from variables."""
_CPP_RUNTIME = "1.4.0rc1"
"""First version whose default is a Python transceiver, which needs NIXL (TensorRT-LLM 18134)."""
_EVENTS = 1024
"""Buffer size for events of the KV cache in upstream's examples; kv_cache_aware needs these events."""
_BUFFER_SIZED = "1.3.0rc3"
"""First version that by itself makes a buffer of ``max_seq_len`` tokens (TensorRT-LLM 11082)."""


def _transfer_keys(facts: JobFacts, role: str) -> dict[str, Any]:
    """Return the LLM API's keys that a server of a phase needs to transfer the KV cache."""
    phases = facts.job.serve.disaggregated
    assert phases is not None
    transceiver: dict[str, Any] = {"backend": phases.kv_transfer}
    if phases.kv_transfer_tokens is not None:
        transceiver["max_tokens_in_buffer"] = phases.kv_transfer_tokens
    if phases.kv_transfer == "UCX" and facts.image_is_at_least(_CPP_RUNTIME):
        transceiver["transceiver_runtime"] = "CPP"
    # A context server sends the cache after each step, so steps must not overlap.
    overlap = {"disable_overlap_scheduler": True} if role == "context" else {}
    events = {"event_buffer_max_size": _EVENTS} if phases.router == "kv_cache_aware" else {}
    return {"cache_transceiver_config": transceiver, "kv_cache_config": events, **overlap}


def _with_buffer(job: JobFile) -> JobFile:
    """Return the job with a transfer buffer of whole blocks, by default larger than the longest prompt.

    Without a buffer size NIXL fails on long prompts up to 1.2.1; later the default size is max_seq_len.
    """
    phases, longest, block = job.serve.disaggregated, longest_prompt(job), block_tokens(job)
    assert phases is not None
    tokens = phases.kv_transfer_tokens or (longest and longest + 1)
    sized = phases.model_copy(update={"kv_transfer_tokens": tokens and -(-tokens // block) * block})
    return job.model_copy(update={"serve": job.serve.model_copy(update={"disaggregated": sized})})


def topology_of(phases: Phases, job: JobFile, cluster: ClusterProfile) -> Instances:
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


def servers_can_be_split(facts: JobFacts) -> Diagnostics:
    """The servers of both phases must need exactly ``serve.nodes`` nodes, if that is set."""
    job, cluster, serve = facts.job, facts.cluster, facts.job.serve
    phases = serve.disaggregated
    if phases is None:
        return
    needed = topology_of(phases, job, cluster).nodes
    if serve.nodes is not None and serve.nodes != needed:
        message = f"the servers of both phases take {needed} nodes of {cluster.gpus_per_node} GPUs"
        hint = f"set it to {needed}, or leave it out; serve.placement: spread gives each server its own"
        yield in_job("conflict", "serve.nodes", message, hint, serve.nodes)


def kv_cache_can_be_sent(facts: JobFacts) -> Diagnostics:
    """The servers of both phases must be able to send the KV cache to each other, even of long prompts."""
    job, phases = facts.job, facts.job.serve.disaggregated
    if phases is None:
        return
    if facts.release is not None and facts.assumed_release is None:
        words = {"cache_transceiver_config": {"backend": phases.kv_transfer}}
        for _, message, remedy in wrong_values(facts.release, words):
            field, why = "serve.disaggregated.kv_transfer", f"TensorRT-LLM {facts.release.version}: {message}"
            yield in_job("release", field, why, remedy, phases.kv_transfer)
    fails = facts.image_is_at_least(_BUFFER_SIZED) is False and phases.kv_transfer in ("DEFAULT", "NIXL")
    if fails and phases.kv_transfer_tokens is None and longest_prompt(job) is None:
        message = f"NIXL fails here on prompts longer than its buffer, before TensorRT-LLM {_BUFFER_SIZED}"
        hint = "set it to the longest prompt, or set engine.max_seq_len"
        yield in_job("missing", "serve.disaggregated.kv_transfer_tokens", message, hint)


def front_keys_are_taken(facts: JobFacts) -> Diagnostics:
    """The release's front must know the keys of ``front``: it ignores unknown keys."""
    phases, section = facts.job.serve.disaggregated, "serve.disaggregated"
    if phases is None:
        return
    for key in unknown_keys(facts.release, phases.front, FRONT) if facts.assumed_release is None else ():
        version = f"TensorRT-LLM {facts.release.version}: it " if facts.release else ""
        hint = "remove it, or take an image that has it (serve.image)"
        if key.suggestion and key.suggestion.startswith(f"{FRONT}."):
            hint = f"did you mean {section}.{key.suggestion}?"
        yield in_job("unknown-key", f"{section}.{key.path}", f"{version}{key.message}", hint)


def release_has_phases(facts: JobFacts) -> Diagnostics:
    """The release's servers must read the transport of the KV cache from their file."""
    release = facts.release
    if release is not None and not release.at_least(_OLDEST):
        message = f"phases of {SERVER} need TensorRT-LLM {_OLDEST} or later, not {release.version}"
        yield in_job("release", "serve.mode", message, "take a later image (serve.image)")


class DisaggregatedTrtllmServe(TrtllmServe):
    """Disaggregated serving: servers of both phases, on any number of nodes, behind upstream's front."""

    rules: tuple[Rule, ...] = (
        *TrtllmServe.rules,
        Requires("serve.mode", "serve.disaggregated",
                 "serve.mode disaggregated needs the servers of both phases",
                 "write {{context: {{servers: 1}}, generation: {{servers: 2}}}}",
                 code="missing", at="serve.disaggregated"),
        Excludes("serve.mode", "cluster.scheduler=local",
                 "{cluster.name!r} has no Slurm, whose steps the servers are", "choose a profile for Slurm"),
        Excludes("serve.proxy=none", "",
                 "the front of the servers listens on its own node only, behind the proxy",
                 "set serve.proxy to haproxy"),
        Excludes("serve.renew", "",
                 "while the proxy lets requests end, the front could not reach the servers through it",
                 "set it to false"),
        Excludes("serve.disaggregated.context.engine serve.disaggregated.context.instances "
                 "serve.disaggregated.generation.engine serve.disaggregated.generation.instances", "",
                 "has no effect on a phase with trtllm-serve", "remove it"),
        *(release_has_phases, servers_can_be_split, kv_cache_can_be_sent),
        front_keys_are_taken,
    )  # fmt: skip

    def topology(self, job: JobFile, cluster: ClusterProfile) -> Instances:
        """Return a group of servers for each phase."""
        phases = job.serve.disaggregated
        # A rule refuses a job file without phases.
        return super().topology(job, cluster) if phases is None else topology_of(phases, job, cluster)

    def servers(self, facts: JobFacts, instances: Instances, paths: RunPaths) -> tuple[ServerPlan, ...]:
        """Return the servers of each phase."""
        phases, job = facts.job.serve.disaggregated, _with_buffer(facts.job)
        assert phases is not None
        # As upstream's scripts for Slurm do: Slurm's PMIx plugin sets UCX_TLS for every task, which would
        # limit the transfer of the KV cache.
        environment: dict[str, str | None] = {"UCX_TLS": None}
        servers = []
        for (role, phase), group in zip(phases.roles, instances.groups, strict=True):
            phase_facts = replace(facts, job=job.with_phase(phase))
            known, further = pytorch_arguments(phase_facts.job, paths), _transfer_keys(phase_facts, role)
            servers.append(server_plan(phase_facts, group.layout, known, further, paths, role, environment))
        return tuple(servers)

    def front(self, job: JobFile) -> FrontPlan | None:
        """Return upstream's front."""
        phases = job.serve.disaggregated
        assert phases is not None
        start_s = f"--server_start_timeout={job.serve.ready_timeout_seconds}"
        command = (SERVER, "disaggregated", start_s, f"--request_timeout={phases.request_timeout_seconds}")
        router = {} if phases.router is None else {"router": {**phases.router_args, "type": phases.router}}
        servers = {
            f"{role}_servers": {"num_instances": phase.servers, **router} for role, phase in phases.roles
        }
        return FrontPlan(command, {"backend": "pytorch", **phases.front, **servers})
