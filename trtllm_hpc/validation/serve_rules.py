"""Rules of layout and serving: ranks, nodes, GPUs, backends and modes."""

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
    """Keys of single backends are set only for these backends."""
    job, backend = facts.job, backend_of(facts.job)
    backends = reversed(BACKENDS.items())  # reversed, so that the hint names the first backend with a key
    owners = {key: (way[0], lacks) for way, other in backends for key, lacks in other.own_keys.items()}
    for key, (owner, lacks) in owners.items():
        section, _, name = key.partition(".")
        if key not in backend.own_keys and getattr(getattr(job, section), name):
            message = f"is set, but engine.backend is {job.engine.backend}{lacks}"
            yield in_job("conflict", key, message, f"set engine.backend to {owner}, or remove it")


def keys_have_an_effect(facts: JobFacts) -> Diagnostics:
    """Each key that is set in engine, repository and kv_cache has an effect on the job's backend."""
    job, backend = facts.job, backend_of(facts.job)
    for section, keys in backend.keys.items():
        # repository.models depends on serve.mode, so another rule judges it.
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
    """Return the keys with values that differ from the defaults in a section, or the key itself."""
    if not isinstance(value, Section):
        return [(key, value)]
    fields = ((name, type(value).model_fields[name]) for name in value.model_fields_set)
    return [
        (f"{key}.{name}", getattr(value, name))
        for name, field in fields
        if getattr(value, name) != field.get_default(call_default_factory=True)
    ] or [(key, value)]


def ranks_spread(facts: JobFacts) -> Diagnostics:
    """Every node runs the same number of ranks, and the local scheduler has only one node."""
    job, cluster = facts.job, facts.cluster
    world, nodes, count = job.engine.world_size, job.serve.nodes, job.serve.instances
    if nodes is None or job.serve.mode != "leader":
        return
    ranks = "1 rank" if world == 1 else f"{world} ranks"
    if cluster.scheduler == "local" and nodes != 1:
        message = f"the profile {cluster.name!r} is a single machine, but the job needs {nodes} nodes"
        hint = "remove serve.nodes, type --set serve.nodes=1, or choose a Slurm profile with --cluster"
        yield in_job("conflict", "serve.nodes", message, hint, nodes)
    elif count > 1 and count % nodes and nodes % count:
        message = f"{count} instances cannot be spread evenly over {nodes} nodes"
        hint = f"set serve.nodes to a divisor or a multiple of {count}, or remove it"
        yield in_job("conflict", "serve.nodes", message, hint, nodes)
    elif world % max(1, nodes // count):
        each = nodes // count
        if count == 1:
            message = f"{ranks} cannot be spread evenly over {nodes} nodes"
            hint = f"set serve.nodes in the job file to a divisor of {world}, or type --set serve.nodes=1"
        else:
            message = f"the {ranks} of an instance cannot be spread evenly over {each} nodes"
            hint = f"set serve.nodes to {count} times a divisor of {world}"
        yield in_job("conflict", "serve.nodes", message, hint, nodes)


def gpus_suffice(facts: JobFacts) -> Diagnostics:
    """On a cluster with GPUs, each node has a GPU for each of its ranks."""
    job, cluster = facts.job, facts.cluster
    world, gpus, count = job.engine.world_size, cluster.gpus_per_node, job.serve.instances
    nodes = 1 if cluster.scheduler == "local" else job.serve.nodes
    if job.serve.mode != "leader" or not gpus or nodes is None:
        return
    instances, ranks = max(1, count // nodes), world // max(1, nodes // count)
    if any(True for _ in ranks_spread(facts)) or instances * ranks <= gpus:
        return
    needs = f"{ranks} ranks on a node need {ranks} GPUs"
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
        message = f"serve.mode {serve.mode} has only one instance"
        yield in_job("conflict", "serve.instances", message, "set it to 1, or serve.mode to leader", count)
    elif count > 1 and serve.proxy == "none":
        message = f"{count} instances need a proxy"
        yield in_job("conflict", "serve.proxy", message, "set serve.proxy to haproxy", serve.proxy)
    if serve.placement == "spread" and (
        facts.cluster.scheduler == "local" or (serve.nodes is not None and serve.nodes < count)
    ):
        nodes = 1 if facts.cluster.scheduler == "local" else serve.nodes
        message = f"{count} instances cannot have a node each: the job has only {nodes}"
        yield in_job("conflict", "serve.placement", message, "set serve.placement to pack", serve.placement)


def renewal_can_work(facts: JobFacts) -> Diagnostics:
    """A renewed server has a time limit, which leaves time to start and to drain."""
    serve = facts.job.serve
    if not serve.renew:
        return
    if facts.cluster.scheduler == "local":
        message = f"the profile {facts.cluster.name!r} has no time limits, so there is nothing to renew"
        hint = "remove it, or choose a Slurm profile with --cluster"
        yield in_job("conflict", "serve.renew", message, hint, serve.renew)
    elif facts.job.companion.enabled and facts.cluster.companion == "overlap":
        message = "the companion would run again in the allocation of every job"
        hint = "set companion.enabled to false, or companion to job in the profile"
        yield in_job("conflict", "serve.renew", message, hint, serve.renew)
    shortest = (serve.drain_seconds + serve.ready_timeout_seconds) // 60 + 2
    if serve.time_limit_minutes < shortest:
        message = f"may end before the server is ready and drained, which can take {shortest} minutes"
        hint = f"set it to {shortest} or more, or lower serve.ready_timeout_seconds and serve.drain_seconds"
        yield in_job("conflict", "serve.time_limit_minutes", message, hint, serve.time_limit_minutes)


def site_limits(facts: JobFacts) -> Diagnostics:
    """The job stays within the site's limits, which the profile has."""
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
        message = f"the server asks for no key, {allows} only servers behind a proxy with a key"
        yield in_job("site-limit", "serve.proxy", message, hint)


def build_gpus(facts: JobFacts) -> Diagnostics:
    """One node has the GPUs for the build."""
    job, cluster = facts.job, facts.cluster
    wanted, available = job.build.gpus, cluster.gpus_per_node
    if wanted is not None and wanted > available:
        message = f"the build needs {wanted} GPUs, but a node of {cluster.name!r} has {available}"
        hint = f"set build.gpus to at most {available}, or correct gpus_per_node in the profile"
        yield in_job("conflict", "build.gpus", message, hint, wanted)


def frontend_fits_backend(facts: JobFacts) -> Diagnostics:
    """The frontend can serve the backend."""
    job = facts.job
    engine, frontend = job.engine.backend, job.frontend
    if not any(way[:2] == (engine, frontend) for way in BACKENDS):
        message = f"trtllm-serve cannot serve engine.backend {engine}"
        able = (
            way[0]
            for way, backend in BACKENDS.items()
            if way[1] == "openai" and backend.release_use != "none"
        )
        hint = f"set it to triton, or engine.backend to {' or '.join(dict.fromkeys(able))}"
        yield in_job("conflict", "serve.frontend", message, hint, job.serve.frontend)


def mode_fits_backend(facts: JobFacts) -> Diagnostics:
    """The mode works with the backend and the frontend."""
    job = facts.job
    engine, frontend, mode = job.engine.backend, job.frontend, job.serve.mode
    if (engine, frontend, mode) in BACKENDS or mode == "leader":
        return
    able = next((way[0] for way in BACKENDS if way[1:] == (frontend, mode)), None)
    behind_triton = next(way[0] for way in BACKENDS if way[1:] == ("triton", mode))
    if frontend == "openai" and able is not None:
        message = f"serve.mode {mode} with trtllm-serve needs engine.backend {able}, not {engine}"
        yield in_job("conflict", "serve.mode", message, f"set engine.backend to {able}", mode)
    else:
        message = f"serve.mode {mode} needs engine.backend {behind_triton} behind Triton, not {engine}"
        hint = f"set engine.backend to {behind_triton} and serve.frontend to triton, or serve.mode to leader"
        yield in_job("conflict", "serve.mode", message, hint, mode)


def model_can_be_staged(facts: JobFacts) -> Diagnostics:
    """A model that nodes copy to their disks is loaded by the server without a build."""
    job, stage = facts.job, facts.job.model.stage
    is_loaded = backend_of(job).loaded_model(job, RunPaths("/")) == job.model.path
    if stage is not None and not (is_loaded and (job.model.path or job.model.hub)):
        message = "the server loads the result of the build stage instead of the model's folder"
        hint = "remove it, or use a backend that loads checkpoints, without engine.quantization"
        yield in_job("conflict", "model.stage", message, hint, stage)


RULES: tuple[Rule, ...] = (
    Requires("repository.models", "serve.mode=orchestrator",
             "is set, but serve.mode {job.serve.mode} serves one model",
             "set serve.mode to orchestrator, or remove it"),
    Requires("serve.mode=orchestrator", "repository.models",
             "serve.mode orchestrator serves the models in this list, but it is empty",
             "list them: [{{name: tensorrt_llm, gpu_device_ids: [0]}}, ...], or set serve.mode to leader",
             code="missing", at="repository.models"),
    Requires("serve.disaggregated", "serve.mode=disaggregated",
             "is set, but serve.mode is {job.serve.mode}", "set serve.mode to disaggregated, or remove it"),
    Excludes("serve.routing!=least", "serve.mode=disaggregated",
             "with serve.mode disaggregated, serve.disaggregated.router chooses the server",
             "remove it, and set serve.disaggregated.router"),
    Excludes("serve.tls", "serve.proxy=none", "only the proxy can encrypt", "set serve.proxy to haproxy"),
    Excludes("serve.idle_minutes", "serve.proxy=none", "only the proxy can see whether requests arrive",
             "set serve.proxy to haproxy, or serve.idle_minutes to null"),
    Excludes("serve.proxy=none", "serve.renew",
             "serve.renew needs a proxy, which lets open requests finish before the server ends",
             "set serve.proxy to haproxy"),
    Excludes("serve.renew", "stops_server", "the companion stops the server, so there is nothing to renew",
             "set serve.keep_running to true"),
    Requires("model.stage", "cluster.node_models_folder",
             "the profile {cluster.name!r} has no node_models_folder on the nodes' disks",
             "set node_models_folder in the profile, e.g. to /local/models", code="missing"),
    *(section_has_its_backend, keys_have_an_effect, ranks_spread, gpus_suffice, instances_can_serve),
    *(renewal_can_work, build_gpus, frontend_fits_backend, mode_fits_backend, model_can_be_staged),
)  # fmt: skip
