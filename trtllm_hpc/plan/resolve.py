"""Job file and cluster profile to plan, with its stages: resources, dependencies and ``#SBATCH`` lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from trtllm_hpc.backends import backend_of
from trtllm_hpc.backends.base import ServerPlan
from trtllm_hpc.backends.profile import rank_profile
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.layout import Instances, Layout, one_node, seats
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.plan.model import Component, Dependency, Directive, Plan, Stage, staged_model
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts

_STOP_SECONDS = 60
"""For a server's orderly end, before its time limit."""
NODE_CHECK_MINUTES = 10
_DOWNLOAD_CPUS = 2
_WITH_RANKS = ("serve", "doctor")


def make_plan(
    facts: JobFacts,
    paths: RunPaths,
    python: str,
    *,
    engines_folder: str | None = None,
    templates: str | None = None,
) -> Plan:
    """Resolve a job file and a profile into a plan, which depends on these arguments only.

    Args:
        python: the interpreter to use on the nodes when the profile names none.
        engines_folder: the cache of engines; by default ``engines`` beside the folder of runs.
        templates: folder of upstream's model templates, if this machine has the image's.

    The rules have judged both files: what they refuse is not looked for again.
    """
    job, cluster = facts.job, facts.cluster
    backend = backend_of(job)
    assert facts.unknown_release is None, facts.unknown_release
    chosen = cluster.python or python
    task_python = chosen if cluster.container.runtime == "none" else cluster.container.python
    release, engine = facts.release, job.engine.directory or str(paths.engine)
    instances = backend.topology(job, cluster)
    build = backend.build(facts, instances.layout, task_python)
    served = facts
    if (staged := staged_model(facts, paths)) is not None:
        model = job.model.model_copy(update={"path": staged})
        served = replace(facts, job=job.model_copy(update={"model": model}))
    servers = backend.phase_servers(served, instances, paths)
    servers = servers or (backend.server(served, instances.layout, paths),)
    return Plan(
        name=job.name,
        run_folder=str(paths.folder),
        python=chosen,
        task_python=task_python,
        instances=instances,
        servers=tuple(_with_environment(server, job, paths) for server in servers),
        front=backend.front(job),
        release=release.version if release is not None and facts.assumed_release is None else None,
        engines_folder=engines_folder or str(paths.folder.parent.parent / "engines"),
        engine_folder=engine,
        engine_found=None,
        build_steps=build.steps,
        repository=backend.repository(served, paths),
        repository_values=backend.repository_values(job, engine),
        templates=templates,
        all_models=cluster.container.all_models
        or (release.paths.all_models if release is not None else None),
        stages=make_stages(job, cluster, instances, paths, builds=bool(build.steps)),
        served_engines=backend.served_engines(job, paths),
        facts=facts,
        notes=(*build.notes, *seats(instances), *backend.notes(facts), *_door_notes(job)),
    )


def _with_environment(server: ServerPlan, job: JobFile, paths: RunPaths) -> ServerPlan:
    """Return the server with the variables that the job file sets, and its profile of ranks."""
    environment = {**server.spec.environment, **job.serve.environment}
    profile = None if job.serve.profile is None else rank_profile(job.serve.profile, paths)
    return replace(server, spec=replace(server.spec, environment=environment, profile=profile))


def with_engine(plan: Plan, engine: str) -> Plan:
    """Return the plan without its build stage: the engine is in the cache."""
    stages = make_stages(plan.job, plan.cluster, plan.instances, RunPaths(plan.run_folder), builds=False)
    return replace(plan, engine_found=engine, stages=stages)


def with_download(plan: Plan) -> Plan:
    """Return the plan with a first stage that downloads its model, on nodes without GPUs."""
    update = {"partition": plan.cluster.download_partition, "qos": None, "reservation": None}
    cluster = plan.cluster.model_copy(update={**update, "constraint": None})
    asked = _Resources(one_node(1, 0), _DOWNLOAD_CPUS, None, cluster.download_minutes)
    first = _stage("download", plan.job, cluster, RunPaths(plan.run_folder), asked, ())
    after = Dependency("afterok", "download")
    return replace(plan, stages=(first, *(replace(it, after=(after, *it.after)) for it in plan.stages)))


def _door_notes(job: JobFile) -> tuple[str, ...]:
    if job.serve.door == "none" or job.serve.key:
        return ()
    return ("serve.key is false: everybody who reaches the server's node may call and control the server",)


@dataclass(frozen=True)
class _Resources:
    layout: Layout
    cpus: int
    """Of each task."""
    memory_gib: int | None
    """Of each node."""
    minutes: int
    warning_seconds: int | None = None
    """Slurm warns the script by a signal so long before the time limit."""


def make_stages(
    job: JobFile, cluster: ClusterProfile, instances: Instances, paths: RunPaths, *, builds: bool
) -> tuple[Stage, ...]:
    """The stages of a run, in the order of submission."""
    build, serve, companion = job.build, job.serve, job.companion
    built = (Dependency("afterok", "build"),) if builds else ()
    stages = []
    if builds:
        one = one_node(1, _build_gpus(job, cluster))
        asked = _Resources(one, build.cpus, build.memory_gib, build.time_limit_minutes)
        stages.append(_stage("build", job, cluster, paths, asked, ()))
    warning = serve.drain_seconds + _STOP_SECONDS if serve.renew else None
    resources = [
        _Resources(layout, serve.cpus_per_rank, serve.memory_gib_per_node, serve.time_limit_minutes, warning)
        for layout in instances.components
    ]
    profiles = [cluster.for_phase(group.role) for group in instances.groups] or [cluster]
    first = _stage("serve", job, profiles[0], paths, resources[0], built)
    others = zip(profiles[1:], resources[1:], strict=False)
    stages.append(replace(first, further=tuple(_component(*one) for one in others)))
    if companion.enabled and cluster.companion == "job":
        one = one_node(1, 0)
        asked = _Resources(one, companion.cpus, companion.memory_gib, companion.time_limit_minutes)
        # "after" also holds when the serve job is cancelled before it starts, as
        # it is when the build fails (sbatch(1), --dependency): so both are named.
        after = (Dependency("after", "serve"), *built)
        stages.append(_stage("companion", job, cluster, paths, asked, after))
    return tuple(stages)


def node_check_stage(job: JobFile, cluster: ClusterProfile, layout: Layout, paths: RunPaths) -> Stage:
    """The job of ``doctor --on-nodes``: what the serve stage asks for, on few nodes and for ten minutes."""
    asked = _Resources(layout, job.serve.cpus_per_rank, job.serve.memory_gib_per_node, NODE_CHECK_MINUTES)
    return _stage("doctor", job, cluster, paths, asked, ())


def _build_gpus(job: JobFile, cluster: ClusterProfile) -> int:
    """GPUs of the build stage. TensorRT tunes its kernels on the GPU that will run them."""
    if job.build.gpus is not None:
        return job.build.gpus
    return 1 if backend_of(job).needs_gpus and cluster.gpus_per_node else 0


def _stage(
    name: str,
    job: JobFile,
    cluster: ClusterProfile,
    paths: RunPaths,
    asked: _Resources,
    after: tuple[Dependency, ...],
) -> Stage:
    directives = (
        *_common(name, job.name, paths),
        *_nodes(cluster, cluster.companion_partition if name == "companion" else None),
        *_resources(name, cluster, asked),
        *_profile_options(cluster),
    )
    return Stage(name, directives, after, asked.cpus, asked.layout.gpus_per_node)


def _component(cluster: ClusterProfile, asked: _Resources) -> Component:
    """A component of the serve stage after the first, which names the job and its log."""
    directives = (*_nodes(cluster), *_resources("serve", cluster, asked), *_profile_options(cluster))
    return Component(directives, asked.layout.gpus_per_node)


def _profile_options(cluster: ClusterProfile) -> Iterator[Directive]:
    for text in cluster.sbatch_options:
        option, separator, value = text.partition("=")
        yield Directive(option, value if separator else None)


def _common(stage: str, name: str, paths: RunPaths) -> Iterator[Directive]:
    yield Directive("--job-name", f"{name}-{stage}")
    yield Directive("--output", str(paths.batch_log(stage)))
    # A requeued or resubmitted job must not overwrite the log of the attempt before.
    yield Directive("--open-mode", "append")
    # A requeued job would start a server without a companion.
    yield Directive("--no-requeue")
    # The limits (ulimit) of the shell that submits are no matter of the job.
    yield Directive("--propagate", "NONE")


def _nodes(cluster: ClusterProfile, partition: str | None = None) -> Iterator[Directive]:
    for option, value in (
        ("--partition", partition or cluster.partition),
        ("--account", cluster.account),
        ("--qos", cluster.qos),
        ("--reservation", cluster.reservation),
        ("--constraint", cluster.constraint),
    ):
        if value is not None:
            yield Directive(option, value)


def _resources(stage: str, cluster: ClusterProfile, asked: _Resources) -> Iterator[Directive]:
    yield Directive("--nodes", asked.layout.nodes)
    yield Directive("--ntasks", asked.layout.world_size)
    if stage in _WITH_RANKS:
        yield Directive("--ntasks-per-node", asked.layout.ranks_per_node)
    yield Directive("--cpus-per-task", asked.cpus)
    if asked.memory_gib is not None:
        yield Directive("--mem", f"{asked.memory_gib}G")
    if asked.layout.gpus_per_node and cluster.gpu_request != "none":
        yield _gpus(cluster, asked.layout)
    if stage in _WITH_RANKS and cluster.exclusive:
        yield Directive("--exclusive")
    if stage == "serve" and asked.warning_seconds is not None:
        # To the batch script only (B:); the ranks would end by it.
        yield Directive("--signal", f"B:USR1@{asked.warning_seconds}")
    # A bare number is minutes (sbatch(1), --time).
    yield Directive("--time", asked.minutes)


def _gpus(cluster: ClusterProfile, layout: Layout) -> Directive:
    kind = f"{cluster.gpu_type}:" if cluster.gpu_type else ""
    if cluster.gpu_request == "gres":
        return Directive("--gres", f"gpu:{kind}{layout.gpus_per_node}")
    count = layout.gpus_per_node * (layout.nodes if cluster.gpu_request == "gpus" else 1)
    return Directive(f"--{cluster.gpu_request}", f"{kind}{count}" if kind else count)
