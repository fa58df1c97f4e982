"""Job file and cluster profile to plan, with its stages: what each asks for and waits for."""

from __future__ import annotations

from dataclasses import replace

from trtllm_hpc.backends import backend_of
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.layout import Instances, Layout, one_node
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.plan.model import Plan, staged_model
from trtllm_hpc.runtime.plan_record import Dependency, Resources, Stage
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts

_STOP_SECONDS = 60
"""For a server's orderly end, before its time limit."""
NODE_CHECK_MINUTES = 10
_DOWNLOAD_CPUS = 2
_DOWNLOAD_MINUTES = 480


def make_plan(facts: JobFacts, paths: RunPaths, python: str, *, engines_folder: str | None = None) -> Plan:
    """Resolve a job file and a profile into a plan, which depends on these arguments only.

    Args:
        python: the interpreter to use on the nodes when the profile names none.
        engines_folder: the cache of engines; by default ``engines`` beside the folder of runs.

    The rules have judged both files: what they refuse is not looked for again.
    """
    job, cluster = facts.job, facts.cluster
    backend = backend_of(job)
    assert facts.unknown_release is None, facts.unknown_release
    chosen, release, instances = cluster.python or python, facts.release, backend.topology(job, cluster)
    task_python = chosen if cluster.container.runtime == "none" else cluster.container.python
    build_steps = backend.build_steps(facts, instances.layout, task_python)
    served = facts
    if (staged := staged_model(facts, paths)) is not None:
        model = job.model.model_copy(update={"path": staged})
        served = replace(facts, job=job.model_copy(update={"model": model}))
    servers = []
    for server in backend.servers(served, instances, paths):
        environment = {**server.spec.environment, **job.serve.environment}
        servers.append(replace(server, spec=replace(server.spec, environment=environment)))
    return Plan(
        name=job.name,
        run_folder=str(paths.folder),
        python=chosen,
        scheduler=cluster.scheduler,
        slurm_conf=cluster.slurm_conf,
        model=job.model.path or job.model.synthetic,
        release=release.version if release is not None and facts.assumed_release is None else None,
        engine_folder=job.engine.directory or str(paths.engine),
        engine_found=None,
        causes_folder=cluster.causes_folder,
        stops_server=job.stops_server,
        world_sizes=tuple(instances.world_sizes),
        gpus_per_node=instances.layout.gpus_per_node,
        stages=make_stages(job, cluster, instances, paths, builds=bool(build_steps)),
        task_python=task_python,
        instances=instances,
        servers=tuple(servers),
        front=backend.front(job),
        engines_folder=engines_folder or str(paths.folder.parent.parent / "engines"),
        build_steps=build_steps,
        repository=backend.repository(served, paths),
        all_models=cluster.container.all_models
        or (release.paths.all_models if release is not None else None),
        served_engines=backend.served_engines(job, paths),
        facts=facts,
        notes=backend.notes(facts),
    )


def with_engine(plan: Plan, engine: str) -> Plan:
    """Return the plan without its build stage: the engine is in the cache."""
    stages = make_stages(plan.job, plan.cluster, plan.instances, RunPaths(plan.run_folder), builds=False)
    return replace(plan, engine_found=engine, stages=stages)


def with_download(plan: Plan) -> Plan:
    """Return the plan with a first stage that downloads its model, on nodes without GPUs."""
    update = {"partition": plan.cluster.download_partition}
    cluster = plan.cluster.model_copy(update=update | dict.fromkeys(("qos", "reservation", "constraint")))
    asked = _resources(cluster, one_node(1, 0), _DOWNLOAD_CPUS, None, _DOWNLOAD_MINUTES)
    first = _stage("download", plan.job, RunPaths(plan.run_folder), asked)
    after = Dependency("afterok", "download")
    return replace(plan, stages=(first, *(replace(it, after=(after, *it.after)) for it in plan.stages)))


def make_stages(
    job: JobFile, cluster: ClusterProfile, instances: Instances, paths: RunPaths, *, builds: bool
) -> tuple[Stage, ...]:
    """The stages of a run, in the order of submission."""
    build, serve, companion = job.build, job.serve, job.companion
    built = (Dependency("afterok", "build"),) if builds else ()
    stages = []
    if builds:
        # TensorRT tunes its kernels on the GPU that will run them.
        needs_gpu = backend_of(job).needs_gpus and cluster.gpus_per_node > 0
        one = one_node(1, int(needs_gpu) if build.gpus is None else build.gpus)
        asked = _resources(cluster, one, build.cpus, build.memory_gib, build.time_limit_minutes)
        stages.append(_stage("build", job, paths, asked))
    profiles = [cluster.for_phase(group.role) for group in instances.groups] or [cluster]
    components = tuple(
        replace(
            _resources(profile, on, serve.cpus_per_rank, serve.memory_gib_per_node, serve.time_limit_minutes),
            tasks_per_node=on.ranks_per_node,
            exclusive=profile.exclusive,
            warning_seconds=serve.drain_seconds + _STOP_SECONDS if serve.renew else None,
        )
        for profile, on in zip(profiles, instances.components, strict=False)
    )
    stages.append(_stage("serve", job, paths, *components, after=built))
    if companion.enabled and cluster.companion == "job":
        limits = companion.cpus, companion.memory_gib, companion.time_limit_minutes
        asked = _resources(cluster, one_node(1, 0), *limits)
        asked = replace(asked, partition=cluster.companion_partition or cluster.partition)
        # "after" also holds when the serve job is cancelled before it starts, as
        # it is when the build fails (sbatch(1), --dependency): so both are named.
        stages.append(_stage("companion", job, paths, asked, after=(Dependency("after", "serve"), *built)))
    return tuple(stages)


def node_check_stage(job: JobFile, cluster: ClusterProfile, layout: Layout, paths: RunPaths) -> Stage:
    """The job of ``doctor --on-nodes``: what the serve stage asks for, on few nodes and for ten minutes."""
    limits = job.serve.cpus_per_rank, job.serve.memory_gib_per_node, NODE_CHECK_MINUTES
    asked = _resources(cluster, layout, *limits)
    asked = replace(asked, tasks_per_node=layout.ranks_per_node, exclusive=cluster.exclusive)
    return _stage("doctor", job, paths, asked)


def _stage(
    name: str, job: JobFile, paths: RunPaths, *components: Resources, after: tuple[Dependency, ...] = ()
) -> Stage:
    return Stage(name, f"{job.name}-{name}", str(paths.batch_log(name)), components, after)


def _resources(
    cluster: ClusterProfile, layout: Layout, cpus_per_task: int, memory_gib: int | None, minutes: int
) -> Resources:
    """What every stage asks for on this cluster."""
    return Resources(
        nodes=layout.nodes,
        tasks=layout.world_size,
        tasks_per_node=None,
        cpus_per_task=cpus_per_task,
        minutes=minutes,
        memory_gib=memory_gib,
        gpus_per_node=layout.gpus_per_node,
        gpu_request=cluster.gpu_request,
        gpu_type=cluster.gpu_type,
        partition=cluster.partition,
        account=cluster.account,
        qos=cluster.qos,
        reservation=cluster.reservation,
        constraint=cluster.constraint,
        options=tuple(cluster.sbatch_options),
    )
