"""Rules of layout and serving: ranks, nodes and GPUs, and the modes that put several models on one node."""

from __future__ import annotations

from collections.abc import Iterator

from trtllm_hpc.config.diagnostics import Diagnostics, in_job
from trtllm_hpc.config.job import PHASE_KEYS, Disaggregated, JobFile, Phase
from trtllm_hpc.plan.disaggregated import BUFFER_SIZED, longest_prompt
from trtllm_hpc.plan.resolve import instances_of
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts

_FIRST_RELEASE = {
    # launch_triton_server.py has --multi-model from backend v0.9.0 on.
    "orchestrator": "0.9.0",
    # all_models/disaggregated_serving is there from backend v0.15.0 on.
    "disaggregated": "0.15.0",
}


def ranks_spread(facts: JobFacts) -> Diagnostics:
    """Every node runs the same number of ranks, and the local scheduler has one node."""
    job, cluster = facts.job, facts.cluster
    world, nodes, count = job.engine.world_size, job.serve.nodes, job.serve.instances
    if nodes is None or job.serve.mode != "leader":
        return
    ranks = "1 rank" if world == 1 else f"{world} ranks"
    if cluster.scheduler == "local" and nodes != 1:
        message = f"the profile {cluster.name!r} is this one machine, but the job asks for {nodes} nodes"
        hint = "leave serve.nodes out, type --set serve.nodes=1, or choose a Slurm profile with --cluster"
        yield in_job("conflict", "serve.nodes", message, hint, nodes)
    elif count > 1 and count % nodes and nodes % count:
        message = f"{count} instances cannot be spread evenly over {nodes} nodes"
        hint = f"set serve.nodes to a divisor or a multiple of {count}, or leave it out"
        yield in_job("conflict", "serve.nodes", message, hint, nodes)
    elif world % max(1, nodes // count):
        each = nodes // count
        if count == 1:
            message = f"{ranks} cannot be spread evenly over {nodes} nodes"
            hint = f"set serve.nodes in the job file to a divisor of {world}, or type --set serve.nodes=1"
        else:
            message = f"{ranks} of an instance cannot be spread evenly over {each} nodes"
            hint = f"set serve.nodes to {count} times a divisor of {world}"
        yield in_job("conflict", "serve.nodes", message, hint, nodes)


def gpus_suffice(facts: JobFacts) -> Diagnostics:
    """A node has a GPU for each of its ranks, if the cluster has GPUs."""
    job, cluster = facts.job, facts.cluster
    world, gpus, count = job.engine.world_size, cluster.gpus_per_node, job.serve.instances
    nodes = 1 if cluster.scheduler == "local" else job.serve.nodes
    if job.serve.mode != "leader" or not gpus or nodes is None:
        return
    instances, ranks = max(1, count // nodes), world // max(1, nodes // count)
    sharing = -(-instances // job.serve.instances_per_gpu)
    if any(True for _ in ranks_spread(facts)) or sharing * ranks <= gpus:
        return
    needs = f"{ranks} ranks on a node need as many GPUs"
    if instances > 1:
        needs = (
            f"{instances} instances of {ranks} rank{'s' * (ranks > 1)} on a node need {sharing * ranks} GPUs"
        )
    message = f"{needs}, but a node of {cluster.name!r} has {gpus}"
    if instances > 1:
        hint = "raise serve.nodes or serve.instances_per_gpu, or lower serve.instances"
        yield in_job("conflict", "serve.instances", message, hint, count)
    elif cluster.scheduler == "local":
        yield in_job("conflict", "engine", message, f"lower engine.tensor_parallel to {gpus} or less", world)
    else:
        fewest = count * world // next(ranks for ranks in range(gpus, 0, -1) if world % ranks == 0)
        yield in_job("conflict", "serve.nodes", message, f"set serve.nodes to {fewest}", nodes)


def instances_can_serve(facts: JobFacts) -> Diagnostics:
    """Several instances need a door, GPUs to share, and the mode leader."""
    job, serve = facts.job, facts.job.serve
    count = serve.instances
    if serve.minimum_instances is not None and serve.minimum_instances > count:
        message = f"{serve.minimum_instances} instances must live, but there are {count}"
        hint = f"set it to at most {count}, or raise serve.instances"
        yield in_job("conflict", "serve.minimum_instances", message, hint, serve.minimum_instances)
    if count > 1 and serve.mode != "leader":
        message = f"serve.mode {serve.mode} serves with one instance"
        yield in_job("conflict", "serve.instances", message, "set it to 1, or serve.mode to leader", count)
    elif count > 1 and serve.door == "none":
        message = f"{count} instances need a door in front of them"
        yield in_job("conflict", "serve.door", message, "set serve.door to haproxy", serve.door)
    if serve.instances_per_gpu > 1 and count % serve.instances_per_gpu:
        message = f"{count} instances cannot share their GPUs by {serve.instances_per_gpu}"
        hint = f"set serve.instances to a multiple of {serve.instances_per_gpu}"
        yield in_job("conflict", "serve.instances_per_gpu", message, hint, serve.instances_per_gpu)
    elif serve.placement == "spread" and (
        facts.cluster.scheduler == "local" or (serve.nodes is not None and serve.nodes < count)
    ):
        nodes = 1 if facts.cluster.scheduler == "local" else serve.nodes
        message = f"{count} instances cannot each have nodes of their own: the job has only {nodes}"
        yield in_job("conflict", "serve.placement", message, "set serve.placement to pack", serve.placement)
    elif serve.instances_per_gpu > 1 and serve.placement == "spread":
        message = "instances on different nodes cannot share GPUs"
        yield in_job("conflict", "serve.placement", message, "set serve.placement to pack", serve.placement)
    if job.serve.tls and serve.door == "none":
        yield in_job("conflict", "serve.tls", "only a door encrypts", "set serve.door to haproxy", serve.tls)
    if serve.certificate is not None and not serve.tls:
        message = "is set, but serve.tls is false"
        yield in_job("conflict", "serve.certificate", message, "set serve.tls to true, or remove it")


def frontend_fits_backend(facts: JobFacts) -> Diagnostics:
    """``trtllm-serve`` serves TensorRT-LLM only."""
    job = facts.job
    if job.frontend == "openai" and job.engine.backend in ("reference", "python"):
        message = f"trtllm-serve does not have the backend {job.engine.backend}"
        hint = "set it to triton, or engine.backend to pytorch or tensorrtllm"
        yield in_job("conflict", "serve.frontend", message, hint, job.serve.frontend)


def llm_api_is_alone_on_a_machine(facts: JobFacts) -> Diagnostics:
    """Without Slurm the LLM API serves with one instance, which starts its own workers."""
    job = facts.job
    if job.engine.has_engine or facts.cluster.scheduler != "local":
        return
    if job.serve.instances > 1:
        message = f"{facts.cluster.name!r} has no Slurm, without which the LLM API has no instances"
        hint = "set it to 1, or choose a profile for Slurm"
        yield in_job("conflict", "serve.instances", message, hint, job.serve.instances)


def renewal_can_work(facts: JobFacts) -> Diagnostics:
    """A server that is renewed goes on by itself, on Slurm, behind a door, and longer than it drains."""
    serve = facts.job.serve
    if not serve.renew:
        return
    if facts.job.stops_server:
        message = "the companion stops the server, so there is nothing to renew"
        yield in_job("conflict", "serve.renew", message, "set serve.keep_running to true", serve.renew)
    if facts.cluster.scheduler == "local":
        message = f"{facts.cluster.name!r} has no time limits"
        yield in_job(
            "conflict", "serve.renew", message, "remove it, or choose a profile for Slurm", serve.renew
        )
    elif facts.job.companion.enabled and facts.cluster.companion == "overlap":
        message = "the companion would run again in the allocation of each job"
        hint = "set companion.enabled to false, or companion to job in the profile"
        yield in_job("conflict", "serve.renew", message, hint, serve.renew)
    if serve.door == "none":
        message = "only a door can let open requests end"
        yield in_job("conflict", "serve.door", message, "set serve.door to haproxy", serve.door)
    shortest = (serve.drain_seconds + serve.ready_timeout_seconds) // 60 + 2
    if serve.time_limit_minutes < shortest:
        message = f"ends before the server has become ready and drained, which may take {shortest} minutes"
        hint = f"set it to {shortest} or more, or lower serve.ready_timeout_seconds and serve.drain_seconds"
        yield in_job("conflict", "serve.time_limit_minutes", message, hint, serve.time_limit_minutes)


def build_gpus(facts: JobFacts) -> Diagnostics:
    """The build needs no more GPUs than one node has."""
    job, cluster = facts.job, facts.cluster
    wanted, there = job.build.gpus, cluster.gpus_per_node
    if wanted is not None and wanted > there:
        message = f"{wanted} GPUs for the build, but a node of {cluster.name!r} has {there}"
        hint = f"set build.gpus to at most {there}, or correct gpus_per_node in the profile"
        yield in_job("conflict", "build.gpus", message, hint, wanted)


def mode_has_its_models(facts: JobFacts) -> Diagnostics:
    """Each mode of serving has its own section, and no other mode's."""
    job = facts.job
    mode = job.serve.mode
    if mode == "orchestrator" and not job.repository.models:
        message = "serve.mode orchestrator serves the models of this list, which is empty"
        hint = "list them: [{name: tensorrt_llm, gpu_device_ids: [0]}, ...], or set serve.mode to leader"
        yield in_job("missing", "repository.models", message, hint)
    if mode != "orchestrator" and job.repository.models:
        message = f"is set, but serve.mode {mode} serves one model"
        yield in_job("conflict", "repository.models", message, "set serve.mode to orchestrator, or remove it")
    phases = job.serve.disaggregated
    if mode == "disaggregated" and job.frontend == "triton":
        both = () if phases is None else (phases.context.instances, phases.generation.instances)
        if not both or not all(both):
            message = "serve.mode disaggregated needs the GPUs of both phases"
            hint = "write {context: {instances: [[0]]}, generation: {instances: [[1]]}}"
            yield in_job("missing", "serve.disaggregated", message, hint)
    elif mode == "disaggregated" and phases is None:
        message = "serve.mode disaggregated needs the servers of both phases"
        hint = "write {context: {servers: 1}, generation: {servers: 2}}"
        yield in_job("missing", "serve.disaggregated", message, hint)
    if mode != "disaggregated" and job.serve.disaggregated is not None:
        message = f"is set, but serve.mode is {mode}"
        yield in_job(
            "conflict", "serve.disaggregated", message, "set serve.mode to disaggregated, or remove it"
        )


def mode_fits_backend(facts: JobFacts) -> Diagnostics:
    """Modes other than leader need the C++ backend, a release that has them, and one node."""
    job = facts.job
    mode = job.serve.mode
    if mode == "leader":
        return
    if job.frontend == "openai" and mode == "disaggregated":
        yield from _servers_can_be_split(facts)
        return
    if job.engine.backend != "tensorrtllm" or job.frontend == "openai":
        message = f"serve.mode {mode} needs the backend tensorrtllm behind Triton, not {job.engine.backend}"
        hint = "set engine.backend to tensorrtllm and serve.frontend to triton, or serve.mode to leader"
        yield in_job("conflict", "serve.mode", message, hint, mode)
        return
    if job.serve.nodes not in (None, 1):
        message = f"serve.mode {mode} serves on one node only"
        yield in_job("conflict", "serve.nodes", message, "leave serve.nodes out", job.serve.nodes)
    release, first = facts.release, _FIRST_RELEASE[mode]
    if release is not None and not release.at_least(first):
        message = f"TensorRT-LLM {release.version} has no mode {mode}: it came with {first}"
        yield in_job("conflict", "serve.mode", message, f"take {first} or later, or leader mode", mode)


def _servers_can_be_split(facts: JobFacts) -> Diagnostics:
    """What servers of two phases behind a front need."""
    job, cluster, serve = facts.job, facts.cluster, facts.job.serve
    mode = serve.mode
    if job.engine.has_engine:
        message = f"trtllm-serve has the mode {mode} for the backend pytorch, not {job.engine.backend}"
        yield in_job("conflict", "serve.mode", message, "set engine.backend to pytorch", mode)
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
    needed = instances_of(job, cluster).nodes
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
    if phases is None or job.frontend == "triton":
        return
    if phases.kv_transfer == "MPI":
        message = "MPI sends within one world of ranks, and each server has a world of its own"
        yield in_job("conflict", "serve.disaggregated.kv_transfer", message, "take UCX, NIXL or DEFAULT")
    fails = facts.image_is_at_least(BUFFER_SIZED) is False and phases.kv_transfer != "UCX"
    if fails and phases.kv_transfer_tokens is None and longest_prompt(job) is None:
        message = f"NIXL fails here on prompts longer than its buffer, before TensorRT-LLM {BUFFER_SIZED}"
        hint = "set it to the longest prompt, or set engine.max_seq_len"
        yield in_job("missing", "serve.disaggregated.kv_transfer_tokens", message, hint)


def phases_have_their_keys(facts: JobFacts) -> Diagnostics:
    """A phase has copies of a model behind Triton, and servers behind ``trtllm-serve``'s front."""
    phases = facts.job.serve.disaggregated
    if phases is None:
        return
    is_triton = facts.job.frontend == "triton"
    foreign = _OF_SERVERS if is_triton else _OF_COPIES
    where = "with Triton" if is_triton else "with trtllm-serve"
    for name, phase in (("context", phases.context), ("generation", phases.generation)):
        keys = (*foreign, *PHASE_KEYS[:4]) if is_triton and name == "context" else foreign
        for key in keys:
            value = getattr(phase, key)
            if value != Phase.model_fields[key].get_default(call_default_factory=True):
                message = f"has no effect on a {name} phase {where}"
                yield in_job("conflict", f"serve.disaggregated.{name}.{key}", message, "remove it", value)
    if is_triton:
        for key in ("kv_transfer", "kv_transfer_tokens", "router", "request_timeout_seconds"):
            value = getattr(phases, key)
            if value != Disaggregated.model_fields[key].default:
                message = "has no effect with Triton, only with serve.frontend: openai"
                yield in_job("conflict", f"serve.disaggregated.{key}", message, "remove it", value)


_OF_COPIES = ("engine", "instances")
_OF_SERVERS = ("servers", "moe_expert_parallel", "max_seq_len", "llm_api")
"""Keys of a phase that only Triton's copies have, or only servers."""


def copies_have_gpus(facts: JobFacts) -> Diagnostics:
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


def copies_have_names(facts: JobFacts) -> Diagnostics:
    """Two models of a repository cannot share a name."""
    job = facts.job
    names = [copy.name for copy in job.repository.models]
    for number, name in enumerate(names):
        if name in names[:number]:
            field = f"repository.models[{number}].name"
            yield in_job("conflict", field, f"{name!r} is there already", "give each copy another name", name)


def generation_has_one_engine(facts: JobFacts) -> Diagnostics:
    """The generation's engine is either a finished one, or built with the context's."""
    job, phases = facts.job, facts.job.serve.disaggregated
    if phases is None or not phases.generation.differs:
        return
    field = f"serve.disaggregated.generation.{next(iter(phases.generation.differs))}"
    if phases.generation.engine is not None:
        message = "is set, but the generation has a finished engine (serve.disaggregated.generation.engine)"
        yield in_job("conflict", field, message, "remove one of the two")
    elif job.engine.directory is not None:
        message = "is set, but the job builds no engine (engine.directory)"
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
    second = built if job.generation is None else job.generation.engine.world_size
    for name, phase, ranks in (("context", phases.context, built), ("generation", phases.generation, second)):
        for number, gpus in enumerate(phase.instances):
            # What a finished engine is built for, its first copy tells.
            expected = ranks if phase.engine is None else len(phase.instances[0])
            yield f"serve.disaggregated.{name}.instances[{number}]", gpus, expected
