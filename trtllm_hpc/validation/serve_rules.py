"""Rules of layout and serving: ranks, nodes and GPUs, and the modes that put several models on one node."""

from __future__ import annotations

from trtllm_hpc.backends import BACKENDS, backend_of
from trtllm_hpc.backends.trtllm_serve import TRACES
from trtllm_hpc.config.diagnostics import Diagnostics, in_job
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts
from trtllm_hpc.tensorrt_llm.llm_api import serve_options


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
    serve = facts.job.serve
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
    if serve.routing != "least" and serve.mode == "disaggregated":
        message = "the front of the servers chooses among them"
        yield in_job("conflict", "serve.routing", message, "set serve.disaggregated.router", serve.routing)
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
    hint = "set serve.door to haproxy"
    for key, message, other in (
        ("tls", "only a door encrypts", ""),
        ("cors", "only a door answers browsers", ""),
        ("idle_minutes", "only a door sees whether anybody asks", ", or serve.idle_minutes to null"),
    ):
        if serve.door == "none" and (value := getattr(serve, key)):
            yield in_job("conflict", f"serve.{key}", message, f"{hint}{other}", value)
    if serve.certificate is not None and not serve.tls:
        message = "is set, but serve.tls is false"
        yield in_job("conflict", "serve.certificate", message, "set serve.tls to true, or remove it")


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
        hint = "remove it, or choose a profile for Slurm"
        yield in_job("conflict", "serve.renew", message, hint, serve.renew)
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


def site_limits(facts: JobFacts) -> Diagnostics:
    """The job keeps the limits that the site has set in the profile."""
    job, limits = facts.job, facts.cluster.limits
    allows = f"but the profile {facts.cluster.name!r} allows"
    hint = limits.message or "lower it, or ask your site"
    serve, minutes = job.serve.time_limit_minutes, job.companion.time_limit_minutes
    stages = {"build": job.build.time_limit_minutes, "serve": serve, "companion": minutes}
    for name, asked in stages.items():
        if limits.time_minutes is not None and asked > limits.time_minutes:
            message = f"{asked} minutes, {allows} {limits.time_minutes}"
            yield in_job("site-limit", f"{name}.time_limit_minutes", message, hint, asked)
    parts = backend_of(job).topology(job, facts.cluster).components
    gpus = sum(part.nodes * part.gpus_per_node for part in parts)
    if limits.gpus is not None and gpus > limits.gpus:
        yield in_job("site-limit", "serve", f"{gpus} GPUs, {allows} {limits.gpus}", hint, gpus)
    if limits.door == "obligatory" and not (job.serve.door == "haproxy" and job.serve.key):
        field = "serve.key" if job.serve.door == "haproxy" else "serve.door"
        yield in_job("site-limit", field, f"no server without a key, {allows} only doors with a key", hint)


def build_gpus(facts: JobFacts) -> Diagnostics:
    """The build needs no more GPUs than one node has."""
    job, cluster = facts.job, facts.cluster
    wanted, there = job.build.gpus, cluster.gpus_per_node
    if wanted is not None and wanted > there:
        message = f"{wanted} GPUs for the build, but a node of {cluster.name!r} has {there}"
        hint = f"set build.gpus to at most {there}, or correct gpus_per_node in the profile"
        yield in_job("conflict", "build.gpus", message, hint, wanted)


def frontend_fits_backend(facts: JobFacts) -> Diagnostics:
    """Something serves the backend by the frontend that the job file names."""
    job = facts.job
    engine, frontend = job.engine.backend, job.frontend
    if not any(way[:2] == (engine, frontend) for way in BACKENDS):
        message = f"trtllm-serve does not have the backend {engine}"
        hint = "set it to triton, or engine.backend to pytorch or tensorrtllm"
        yield in_job("conflict", "serve.frontend", message, hint, job.serve.frontend)


def mode_fits_backend(facts: JobFacts) -> Diagnostics:
    """Backend and frontend have the mode of serving."""
    job = facts.job
    engine, frontend, mode = job.engine.backend, job.frontend, job.serve.mode
    if (engine, frontend, mode) in BACKENDS or mode == "leader":
        return
    able = next((way[0] for way in BACKENDS if way[1:] == (frontend, mode)), None)
    if frontend == "openai" and able is not None:
        message = f"trtllm-serve has the mode {mode} for the backend {able}, not {engine}"
        yield in_job("conflict", "serve.mode", message, f"set engine.backend to {able}", mode)
    else:
        message = f"serve.mode {mode} needs the backend tensorrtllm behind Triton, not {engine}"
        hint = "set engine.backend to tensorrtllm and serve.frontend to triton, or serve.mode to leader"
        yield in_job("conflict", "serve.mode", message, hint, mode)


def command_has_its_backend(facts: JobFacts) -> Diagnostics:
    """Only the backend ``command`` starts the server by a command of the job file."""
    serve = facts.job.serve
    if facts.job.engine.backend != "command" and (serve.command or serve.worker_command):
        field = "serve.command" if serve.command else "serve.worker_command"
        message = f"is set, but engine.backend is {facts.job.engine.backend}"
        yield in_job("conflict", field, message, "set engine.backend to command, or remove it")


def build_commands_make_an_engine(facts: JobFacts) -> Diagnostics:
    """Only a backend that loads an engine of TensorRT-LLM builds one by commands of the job file."""
    engine = facts.job.engine
    if facts.job.build.commands and engine.backend not in ("tensorrtllm", "python"):
        message = f"is set, but engine.backend is {engine.backend}, which takes no engine of TensorRT-LLM"
        yield in_job("conflict", "build.commands", message, "set engine.backend to tensorrtllm, or remove it")


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
    if mode != "disaggregated" and job.serve.disaggregated is not None:
        message = f"is set, but serve.mode is {mode}"
        hint = "set serve.mode to disaggregated, or remove it"
        yield in_job("conflict", "serve.disaggregated", message, hint)


def model_can_be_staged(facts: JobFacts) -> Diagnostics:
    """The nodes have a folder for a copy of the model, and the server loads the model's folder as it is."""
    job, stage = facts.job, facts.job.model.stage
    if stage is not None and facts.cluster.node_models_folder is None:
        message = f"the profile {facts.cluster.name!r} names no folder on the nodes' own disks"
        hint = "set node_models_folder in the profile, e.g. to /local/models"
        yield in_job("missing", "model.stage", message, hint, stage)
    is_loaded = backend_of(job).loaded_model(job, RunPaths("/")) == job.model.path
    if stage is not None and not (is_loaded and (job.model.path or job.model.hub)):
        message = "the server does not load the model's folder, but what the build stage makes of it"
        hint = "leave it out, or take a backend that loads a checkpoint, without engine.quantization"
        yield in_job("conflict", "model.stage", message, hint, stage)


def profile_can_be_made(facts: JobFacts) -> Diagnostics:
    """A profile is of ranks that there are, and of an engine that starts and stops the profiler."""
    job, profile = facts.job, facts.job.serve.profile
    if profile is None:
        return
    known = {"torch": ("pytorch",), "nsys": ("pytorch", "tensorrtllm", "python")}[profile.tool]
    if job.engine.backend not in known:
        message = f"the backend {job.engine.backend} does not start and stop the profiler {profile.tool}"
        hint = f"remove serve.profile, or set engine.backend to {' or '.join(known)}"
        yield in_job("conflict", "serve.profile.tool", message, hint, profile.tool)
    phases = job.serve.disaggregated
    servers = [job.with_phase(phase) for _, phase in phases.roles] if phases else [job]
    most = max(it.engine.world_size for it in servers)
    if max(profile.ranks) >= most and (phases or job.serve.mode != "disaggregated"):
        message = f"there is no rank {max(profile.ranks)}"
        hint = f"take numbers from 0 to {most - 1}"
        yield in_job("conflict", "serve.profile.ranks", message, hint, profile.ranks)
    first, last = map(int, profile.iterations.split("-"))
    if last < first:
        hint = f'write "{last}-{first}"'
        yield in_job(
            "conflict", "serve.profile.iterations", "ends before it begins", hint, profile.iterations
        )


def traces_can_be_sent(facts: JobFacts) -> Diagnostics:
    """The server has an option for traces."""
    job = facts.job
    if job.serve.tracing is None:
        return
    if job.engine.backend == "command":
        message, hint = (
            "serve.command has the server's own options",
            "remove serve.tracing and add the option to serve.command",
        )
        yield in_job("conflict", "serve.tracing", message, hint)
    elif job.frontend == "openai" and TRACES not in serve_options(facts.release):
        message, hint = f"this trtllm-serve has no {TRACES}", "take an image with TensorRT-LLM 1.2.0 or later"
        yield in_job("release", "serve.tracing", message, hint)


RULES = (
    traces_can_be_sent,
    profile_can_be_made,
    model_can_be_staged,
    ranks_spread,
    gpus_suffice,
    instances_can_serve,
    frontend_fits_backend,
    command_has_its_backend,
    build_commands_make_an_engine,
    renewal_can_work,
    build_gpus,
    mode_has_its_models,
    mode_fits_backend,
)
