"""Rules of layout and serving: ranks, nodes and GPUs, and the modes that put several models on one node."""

from __future__ import annotations

from typing import Any

from trtllm_hpc.backends import BACKENDS, backend_of
from trtllm_hpc.config.diagnostics import Diagnostics, in_job
from trtllm_hpc.config.engine import DEFAULTS
from trtllm_hpc.config.rules import Excludes, Requires, Rule
from trtllm_hpc.config.types import Section
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts


def section_has_its_backend(facts: JobFacts) -> Diagnostics:
    """Keys that only some backends have are set with these alone."""
    job, backend = facts.job, backend_of(facts.job)
    ways = reversed(BACKENDS.items())  # so that the first backend with a key is the one to name
    owners = {key: (way[0], lacks) for way, other in ways for key, lacks in other.own_keys.items()}
    for key, (owner, lacks) in owners.items():
        section, _, name = key.partition(".")
        if key not in backend.own_keys and getattr(getattr(job, section), name):
            message = f"is set, but engine.backend is {job.engine.backend}{lacks}"
            yield in_job("conflict", key, message, f"set engine.backend to {owner}, or remove it")


def keys_have_an_effect(facts: JobFacts) -> Diagnostics:
    """Each key of engine, repository and kv_cache has an effect on the job's backend."""
    job, backend = facts.job, backend_of(facts.job)
    for section, keys in backend.keys.items():
        # Another rule refuses repository.models, by the mode of serving.
        known = (*keys, "models") if section == "repository" else keys
        why = f"has no effect with engine.backend {job.engine.backend} and serve.frontend {job.frontend}"
        values, defaults = getattr(job, section), DEFAULTS[job.engine.backend] if section == "engine" else {}
        for name, field in type(values).model_fields.items():
            value = getattr(values, name)
            default = defaults.get(name, field.get_default(call_default_factory=True))
            if name not in known and value not in (None, default):
                for key, setting in _leaves(f"{section}.{name}", value):
                    yield in_job("conflict", key, why, backend.unused_hint, setting)


def _leaves(key: str, value: Any) -> list[tuple[str, Any]]:
    """Return the keys that are set in a section; the key itself if it is not a section."""
    if not isinstance(value, Section):
        return [(key, value)]
    fields = ((name, type(value).model_fields[name]) for name in value.model_fields_set)
    return [
        (f"{key}.{name}", getattr(value, name))
        for name, field in fields
        if getattr(value, name) != field.get_default(call_default_factory=True)
    ] or [(key, value)]


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
    if any(True for _ in ranks_spread(facts)) or instances * ranks <= gpus:
        return
    needs = f"{ranks} ranks on a node need as many GPUs"
    if instances > 1:
        each = f"{ranks} rank{'s' * (ranks > 1)}"
        needs = f"{instances} instances of {each} on a node need {instances * ranks} GPUs"
    message = f"{needs}, but a node of {cluster.name!r} has {gpus}"
    if instances > 1:
        hint = "raise serve.nodes, or lower serve.instances"
        yield in_job("conflict", "serve.instances", message, hint, count)
    elif cluster.scheduler == "local":
        yield in_job("conflict", "engine", message, f"lower engine.tensor_parallel to {gpus} or less", world)
    else:
        fewest = count * world // next(ranks for ranks in range(gpus, 0, -1) if world % ranks == 0)
        yield in_job("conflict", "serve.nodes", message, f"set serve.nodes to {fewest}", nodes)


def instances_can_serve(facts: JobFacts) -> Diagnostics:
    """Several instances need a proxy and the mode leader."""
    serve = facts.job.serve
    count = serve.instances
    if count > 1 and serve.mode != "leader":
        message = f"serve.mode {serve.mode} serves with one instance"
        yield in_job("conflict", "serve.instances", message, "set it to 1, or serve.mode to leader", count)
    elif count > 1 and serve.proxy == "none":
        message = f"{count} instances need a proxy in front of them"
        yield in_job("conflict", "serve.proxy", message, "set serve.proxy to haproxy", serve.proxy)
    if serve.placement == "spread" and (
        facts.cluster.scheduler == "local" or (serve.nodes is not None and serve.nodes < count)
    ):
        nodes = 1 if facts.cluster.scheduler == "local" else serve.nodes
        message = f"{count} instances cannot each have nodes of their own: the job has only {nodes}"
        yield in_job("conflict", "serve.placement", message, "set serve.placement to pack", serve.placement)


def renewal_can_work(facts: JobFacts) -> Diagnostics:
    """A server that is renewed has a time limit, longer than it takes to start and to drain."""
    serve = facts.job.serve
    if not serve.renew:
        return
    if facts.cluster.scheduler == "local":
        message = f"{facts.cluster.name!r} has no time limits"
        hint = "remove it, or choose a profile for Slurm"
        yield in_job("conflict", "serve.renew", message, hint, serve.renew)
    elif facts.job.companion.enabled and facts.cluster.companion == "overlap":
        message = "the companion would run again in the allocation of each job"
        hint = "set companion.enabled to false, or companion to job in the profile"
        yield in_job("conflict", "serve.renew", message, hint, serve.renew)
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
    if limits.proxy == "obligatory" and job.serve.proxy != "haproxy":
        message = f"no server without a key, {allows} only proxies with a key"
        yield in_job("site-limit", "serve.proxy", message, hint)


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
        able = (way[0] for way, it in BACKENDS.items() if way[1] == "openai" and it.release_use != "none")
        hint = f"set it to triton, or engine.backend to {' or '.join(dict.fromkeys(able))}"
        yield in_job("conflict", "serve.frontend", message, hint, job.serve.frontend)


def mode_fits_backend(facts: JobFacts) -> Diagnostics:
    """Backend and frontend have the mode of serving."""
    job = facts.job
    engine, frontend, mode = job.engine.backend, job.frontend, job.serve.mode
    if (engine, frontend, mode) in BACKENDS or mode == "leader":
        return
    able = next((way[0] for way in BACKENDS if way[1:] == (frontend, mode)), None)
    behind_triton = next(way[0] for way in BACKENDS if way[1:] == ("triton", mode))
    if frontend == "openai" and able is not None:
        message = f"trtllm-serve has the mode {mode} for the backend {able}, not {engine}"
        yield in_job("conflict", "serve.mode", message, f"set engine.backend to {able}", mode)
    else:
        message = f"serve.mode {mode} needs the backend {behind_triton} behind Triton, not {engine}"
        hint = f"set engine.backend to {behind_triton} and serve.frontend to triton, or serve.mode to leader"
        yield in_job("conflict", "serve.mode", message, hint, mode)


def model_can_be_staged(facts: JobFacts) -> Diagnostics:
    """The nodes have a folder for a copy of the model, and the server loads the model's folder as it is."""
    job, stage = facts.job, facts.job.model.stage
    is_loaded = backend_of(job).loaded_model(job, RunPaths("/")) == job.model.path
    if stage is not None and not (is_loaded and (job.model.path or job.model.hub)):
        message = "the server does not load the model's folder, but what the build stage makes of it"
        hint = "leave it out, or take a backend that loads a checkpoint, without engine.quantization"
        yield in_job("conflict", "model.stage", message, hint, stage)


RULES: tuple[Rule, ...] = (
    Requires("repository.models", "serve.mode=orchestrator",
             "is set, but serve.mode {job.serve.mode} serves one model",
             "set serve.mode to orchestrator, or remove it"),
    Requires("serve.mode=orchestrator", "repository.models",
             "serve.mode orchestrator serves the models of this list, which is empty",
             "list them: [{{name: tensorrt_llm, gpu_device_ids: [0]}}, ...], or set serve.mode to leader",
             code="missing", at="repository.models"),
    Requires("serve.disaggregated", "serve.mode=disaggregated",
             "is set, but serve.mode is {job.serve.mode}", "set serve.mode to disaggregated, or remove it"),
    Excludes("serve.routing!=least", "serve.mode=disaggregated",
             "the front of the servers chooses among them", "set serve.disaggregated.router"),
    Excludes("serve.tls", "serve.proxy=none", "only a proxy encrypts", "set serve.proxy to haproxy"),
    Excludes("serve.idle_minutes", "serve.proxy=none", "only a proxy sees whether anybody asks",
             "set serve.proxy to haproxy, or serve.idle_minutes to null"),
    Excludes("serve.proxy=none", "serve.renew", "only a proxy can let open requests end",
             "set serve.proxy to haproxy"),
    Excludes("serve.renew", "stops_server", "the companion stops the server, so there is nothing to renew",
             "set serve.keep_running to true"),
    Requires("model.stage", "cluster.node_models_folder",
             "the profile {cluster.name!r} names no folder on the nodes' own disks",
             "set node_models_folder in the profile, e.g. to /local/models", code="missing"),
    *(section_has_its_backend, keys_have_an_effect, ranks_spread, gpus_suffice, instances_can_serve),
    *(renewal_can_work, build_gpus, frontend_fits_backend, mode_fits_backend, model_can_be_staged),
)  # fmt: skip
