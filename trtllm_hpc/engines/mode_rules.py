"""Rules of the modes in which Triton serves several copies of an engine on one node."""

from __future__ import annotations

from collections.abc import Iterator

from trtllm_hpc.config.diagnostics import Diagnostics, in_job
from trtllm_hpc.config.job import PHASE_KEYS, Disaggregated, JobFile, Phase
from trtllm_hpc.engines.facts import EngineFacts, generation_of

_FIRST_RELEASE = {
    # launch_triton_server.py has --multi-model from backend v0.9.0 on.
    "orchestrator": "0.9.0",
    # all_models/disaggregated_serving is there from backend v0.15.0 on.
    "disaggregated": "0.15.0",
}
_OF_SERVERS = ("servers", "minimum_servers", "moe_expert_parallel", "max_seq_len", "llm_api")
"""Keys of a phase that only servers of ``trtllm-serve`` have."""


def mode_is_there(facts: EngineFacts) -> Diagnostics:
    """Modes other than leader serve on one node, with a release that has them."""
    job, mode, release = facts.job, facts.job.serve.mode, facts.release
    if job.serve.nodes not in (None, 1):
        message = f"serve.mode {mode} serves on one node only"
        yield in_job("conflict", "serve.nodes", message, "leave serve.nodes out", job.serve.nodes)
    first = _FIRST_RELEASE[mode]
    if release is not None and not release.at_least(first):
        message = f"TensorRT-LLM {release.version} has no mode {mode}: it came with {first}"
        yield in_job("conflict", "serve.mode", message, f"take {first} or later, or leader mode", mode)


def phases_have_gpus(facts: EngineFacts) -> Diagnostics:
    """Disaggregated serving names the GPUs of both phases, and has no keys of ``trtllm-serve``."""
    phases = facts.job.serve.disaggregated
    both = () if phases is None else (phases.context.instances, phases.generation.instances)
    if not both or not all(both):
        message = "serve.mode disaggregated needs the GPUs of both phases"
        hint = "write {context: {instances: [[0]]}, generation: {instances: [[1]]}}"
        yield in_job("missing", "serve.disaggregated", message, hint)
    if phases is None:
        return
    for name, phase in phases.roles:
        for key in (*_OF_SERVERS, *(PHASE_KEYS[:4] if name == "context" else ())):
            value = getattr(phase, key)
            if value != Phase.model_fields[key].get_default(call_default_factory=True):
                message = f"has no effect on a {name} phase with Triton"
                yield in_job("conflict", f"serve.disaggregated.{name}.{key}", message, "remove it", value)
    for key in (
        "kv_transfer",
        "kv_transfer_tokens",
        "router",
        "router_args",
        "request_timeout_seconds",
        "front",
    ):
        value = getattr(phases, key)
        if value != Disaggregated.model_fields[key].default:
            message = "has no effect with Triton, only with serve.frontend: openai"
            yield in_job("conflict", f"serve.disaggregated.{key}", message, "remove it", value)


def copies_have_gpus(facts: EngineFacts) -> Diagnostics:
    """Each copy of the engine has its own GPUs, one for each rank, and the node has them."""
    job, cluster = facts.job, facts.cluster
    taken: dict[int, str] = {}
    there = cluster.gpus_per_node
    for field, gpus, world in _copies(job):
        if len(gpus) != world:
            message = f"{len(gpus)} GPUs for an engine of {world} rank{'s' * (world != 1)}"
            yield in_job("conflict", field, message, f"name {world} of them, or the copy's own engine", gpus)
        for gpu in gpus:
            if there and gpu >= there:
                message = f"a node of {cluster.name!r} has no GPU {gpu}: its {there} are counted from 0"
                yield in_job("conflict", field, message, f"name GPUs below {there}", gpus)
            if gpu in taken:
                message = f"GPU {gpu} is already taken by {taken[gpu]}"
                yield in_job("conflict", field, message, "give each copy GPUs of its own", gpus)
            taken.setdefault(gpu, field)


def copies_have_names(facts: EngineFacts) -> Diagnostics:
    """Two models of a repository cannot share a name."""
    job = facts.job
    names = [copy.name for copy in job.repository.models]
    for number, name in enumerate(names):
        if name in names[:number]:
            field = f"repository.models[{number}].name"
            yield in_job("conflict", field, f"{name!r} is there already", "give each copy another name", name)


def generation_has_one_engine(facts: EngineFacts) -> Diagnostics:
    """The generation's engine is either a finished one, or built with the context's."""
    job, phases = facts.job, facts.job.serve.disaggregated
    if phases is None or not phases.generation.differs:
        return
    field = f"serve.disaggregated.generation.{next(iter(phases.generation.differs))}"
    if phases.generation.engine is not None:
        message = "is set, but the generation has a finished engine (serve.disaggregated.generation.engine)"
        yield in_job("conflict", field, message, "remove one of the two")
    elif job.engine.directory is not None or job.build.commands:
        message = "is set, but the job builds no engine (engine.directory)"
        if job.build.commands:
            message = "is set, but build.commands builds one engine only"
        hint = "name the generation's engine in serve.disaggregated.generation.engine, or remove it"
        yield in_job("conflict", field, message, hint)


def _copies(job: JobFile) -> Iterator[tuple[str, list[int], int]]:
    """Yield the field, the GPUs, and the ranks of the copy's engine."""
    built = job.engine.world_size
    for number, copy in enumerate(job.repository.models):
        gpus = copy.gpu_device_ids
        yield f"repository.models[{number}].gpu_device_ids", gpus, built if copy.engine is None else len(gpus)
    phases = job.serve.disaggregated
    if phases is None:
        return
    generation = generation_of(job)
    second = built if generation is None else generation.engine.world_size
    for name, phase, ranks in (("context", phases.context, built), ("generation", phases.generation, second)):
        for number, gpus in enumerate(phase.instances):
            # What a finished engine is built for, its first copy tells.
            expected = ranks if phase.engine is None else len(phase.instances[0])
            yield f"serve.disaggregated.{name}.instances[{number}]", gpus, expected


OF_ORCHESTRATOR = (mode_is_there, copies_have_gpus, copies_have_names)
OF_PHASES = (mode_is_there, phases_have_gpus, copies_have_gpus, generation_has_one_engine)
