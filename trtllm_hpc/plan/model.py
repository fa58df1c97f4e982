"""The plan of a run: one immutable value with servers, layout and stages.

The same job file, profile, run folder and Python give the same plan, and the plan alone determines every byte
that is rendered.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import PurePosixPath

from trtllm_hpc.backends import backend_of
from trtllm_hpc.backends.base import Backend, FrontPlan, RepositoryModel, ServedEngine, ServerPlan
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.layout import Instances, Layout, ServerGroup, one_node
from trtllm_hpc.paths import RunPaths, preflight_step
from trtllm_hpc.plan.mounts import all_mounts, is_below, outside
from trtllm_hpc.runtime.engine_cache.build_recipe import BuildStep
from trtllm_hpc.runtime.model_repository.recipe import RepositoryRecipe
from trtllm_hpc.runtime.plan_record import Dependency, PlanRecord, Resources, Stage
from trtllm_hpc.runtime.proxy import OPENAI_KINDS
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts

_STOP_SECONDS = 60
"""Seconds for a server's orderly end before its time limit."""
_NODE_CHECK_MINUTES = 10
_DOWNLOAD_CPUS = 2
_DOWNLOAD_MINUTES = 480


@dataclass(frozen=True)
class ServePart:
    """Equal servers of a run and their nodes: the values in which the scripts of two such parts differ."""

    cluster: ClusterProfile
    """The profile for these nodes."""
    layout: Layout
    """Layout of one server's ranks."""
    allocation: Layout
    """Nodes and ranks of all servers of the part together, as the serve stage requests them."""
    group: ServerGroup | None = None
    """The servers of a phase of a disaggregated run; ``None``: the part has all instances."""
    component: int | None = None
    """Number of the heterogeneous job's component with these nodes; ``None`` for any other job."""

    @property
    def preflight(self) -> str:
        """Name of the preflight's job step on these nodes."""
        return preflight_step(self.component or 0)

    @property
    def rank_script(self) -> str:
        """Name of the script that each task of a server runs."""
        return "rank.sh" if self.group is None else f"rank.{self.group.role}.sh"


@dataclass(frozen=True)
class Plan(PlanRecord):
    """A resolved run: the facts that its folder keeps, and those that only rendering needs."""

    task_python: str
    """Python that runs the runtime in a rank: inside the container, if there is one."""
    instances: Instances
    servers: tuple[ServerPlan, ...]
    """The server that every instance runs; in a disaggregated run, the server of each phase."""
    front: FrontPlan | None
    """The process in front of the servers of a disaggregated run."""
    engines_folder: str
    """Folder of the engine cache."""
    build_steps: tuple[BuildStep, ...]
    """Build steps in order; the output of the last step is the engine. Empty if no engine is built."""
    repository: tuple[RepositoryModel, ...] | RepositoryRecipe
    """Models with this package's templates (the reference backend), or the recipe for upstream's
    templates."""
    all_models: str | None
    """Folder of upstream's templates in the container."""
    served_engines: tuple[ServedEngine, ...]
    """Engines that the preflight checks."""
    facts: JobFacts
    """The job file and the profile, with the facts that follow from them."""
    notes: tuple[str, ...] = ()
    """Notes for the user, without any fault."""

    @property
    def layout(self) -> Layout:
        """Layout of one instance's ranks."""
        return self.instances.layout

    @property
    def parts(self) -> tuple[ServePart, ...]:
        """The parts of the serve job: one for each component of a heterogeneous job, else a single part."""
        components = self.instances.components
        return self.phases if len(components) > 1 else (ServePart(self.cluster, self.layout, components[0]),)

    @property
    def phases(self) -> tuple[ServePart, ...]:
        """The servers of each phase of a disaggregated run, with their nodes."""
        components = self.instances.components
        parts = []
        for group in self.instances.groups:
            allocation = components[group.component or 0]
            cluster = self.cluster.for_phase(group.role)
            parts.append(ServePart(cluster, group.layout, allocation, group, group.component))
        return tuple(parts)

    @property
    def tries_network(self) -> bool:
        """Whether the job first tests the network between its nodes."""
        return self.job.preflight.network != "none" and self.instances.nodes > 1

    @property
    def has_proxy(self) -> bool:
        """Whether there is a proxy in front of the server."""
        return self.job.serve.proxy != "none"

    @property
    def proxy_kinds(self) -> tuple[str, ...]:
        """Protocols for which the proxy listens, each at a port of its own."""
        kinds = self.backend.proxy_kinds
        return (*kinds, *OPENAI_KINDS) if self.has_gateway else kinds

    @property
    def has_gateway(self) -> bool:
        """Whether this package's gateway serves OpenAI's protocol behind the proxy."""
        return self.backend.can_have_gateway and self.has_proxy

    @property
    def backend(self) -> Backend:
        """The backend that serves the model."""
        return backend_of(self.job)

    @property
    def server(self) -> ServerPlan:
        """The server; in a disaggregated run, the server of the first phase."""
        return self.servers[0]

    @property
    def spawns_workers(self) -> bool:
        """Whether the server itself starts its workers, by MPI within a Slurm job."""
        return self.backend.spawns_workers and self.cluster.scheduler == "slurm"

    @property
    def needed_programs(self) -> tuple[str, ...]:
        """Programs that the preflight looks for on every node, except Triton, which each rank looks for.

        Empty with a prologue, whose commands may install programs just before the server starts.
        """
        if self.job.serve.prologue:
            return ()
        spec = self.server.spec
        own = () if spec.driver == "triton" else (spec.leader[0],)
        return (*own, *(() if spec.launcher is None else (spec.launcher,)))

    @property
    def restarts(self) -> int:
        """Number of restarts of an instance."""
        if not self.has_proxy:
            return 0  # a restarted server would have another address, which its clients do not know
        restarts = self.job.serve.restarts
        return (3 if self.instances.count > 1 else 0) if restarts is None else restarts

    @property
    def roles(self) -> str:
        """The servers of each phase of a disaggregated run, e.g. ``context:0 generation:1,2``."""
        groups = self.instances.groups
        numbers = {group.role: [str(server.number) for server in group.servers] for group in groups}
        return " ".join(f"{role}:{','.join(servers)}" for role, servers in numbers.items())

    @property
    def leaders(self) -> str:
        """The instances whose rank 0 runs on each node, for the supervisor: ``0:0,1 2:2,3``."""
        nodes = self.instances.leaders.items()
        return " ".join(f"{node}:{','.join(map(str, numbers))}" for node, numbers in nodes)

    @property
    def job(self) -> JobFile:
        """The job file."""
        return self.facts.job

    @property
    def cluster(self) -> ClusterProfile:
        """The cluster profile."""
        return self.facts.cluster

    @property
    def mounts(self) -> tuple[str, ...]:
        """Mounts of the container: run folder, engines, folders of the job file, mounts of the profile."""
        caches = (self.engines_folder,) if self.build_steps else ()
        folder = self.cluster.node_models_folder
        staged = (f"{folder}:{folder}:ro",) if self.staged_model else ()
        return (*all_mounts(self.job, self.cluster, (self.run_folder, *caches)), *staged)

    @property
    def caches_folder(self) -> str:
        """Parent of each user's cache folder, shared by the nodes."""
        named = self.cluster.container.cache_folder
        if named is None or is_below(named, self.cluster.node_local_folders):
            return str(PurePosixPath(self.run_folder).parent)
        return named

    @property
    def staged_model(self) -> str | None:
        """Path of the model on each node's own disk, if the model is copied there."""
        return staged_model(self.facts, RunPaths(self.run_folder))

    @property
    def model_outside(self) -> str:
        """The model's folder, outside any container."""
        return outside(self.job.model.path or "", self.cluster.container.mounts)

    @property
    def fills_repository_in_job(self) -> bool:
        """Whether the first step of the serve stage makes the repository."""
        return isinstance(self.repository, RepositoryRecipe)

    @property
    def record(self) -> PlanRecord:
        """The part of the plan that the run folder keeps."""
        return PlanRecord(**{field.name: getattr(self, field.name) for field in fields(PlanRecord)})


def staged_model(facts: JobFacts, paths: RunPaths) -> str | None:
    """Return the path of the model on each node's own disk; ``None``: the model is not copied."""
    folder, model = facts.cluster.node_models_folder, facts.job.model
    return paths.staged_model(folder, model.path) if model.stage and folder and model.path else None


# From a job file and a profile --------------------------------------------------------


def make_plan(facts: JobFacts, paths: RunPaths, python: str, *, engines_folder: str | None = None) -> Plan:
    """Resolve a job file and a profile into a plan, which depends only on these arguments.

    Rules have checked both files, so their faults are not checked again.

    Args:
        python: interpreter for the nodes if the profile names none.
        engines_folder: folder of the engine cache; by default ``engines`` beside the folder of runs.
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
    resources = _resources(cluster, one_node(1, 0), _DOWNLOAD_CPUS, None, _DOWNLOAD_MINUTES)
    first = _stage("download", plan.job, RunPaths(plan.run_folder), resources)
    after = Dependency("afterok", "download")
    later = (replace(stage, after=(after, *stage.after)) for stage in plan.stages)
    return replace(plan, stages=(first, *later))


def make_stages(
    job: JobFile, cluster: ClusterProfile, instances: Instances, paths: RunPaths, *, builds: bool
) -> tuple[Stage, ...]:
    """Return the stages of a run, in the order of submission."""
    build, serve, companion = job.build, job.serve, job.companion
    built = (Dependency("afterok", "build"),) if builds else ()
    stages = []
    if builds:
        # TensorRT tunes its kernels on the GPU that will run them.
        needs_gpu = backend_of(job).needs_gpus and cluster.gpus_per_node > 0
        layout = one_node(1, int(needs_gpu) if build.gpus is None else build.gpus)
        asked = _resources(cluster, layout, build.cpus, build.memory_gib, build.time_limit_minutes)
        stages.append(_stage("build", job, paths, asked))
    profiles = [cluster.for_phase(group.role) for group in instances.groups] or [cluster]
    components = tuple(
        replace(
            _resources(profile, on, serve.cpus_per_rank, serve.memory_gib_per_node, serve.time_limit_minutes),
            tasks_per_node=on.ranks_per_node,
            exclusive=profile.exclusive,
            gres=tuple(profile.gres),
            warning_seconds=serve.drain_seconds + _STOP_SECONDS if serve.renew else None,
        )
        for profile, on in zip(profiles, instances.components, strict=False)
    )
    stages.append(_stage("serve", job, paths, *components, after=built))
    if companion.enabled and cluster.companion == "job":
        limits = companion.cpus, companion.memory_gib, companion.time_limit_minutes
        asked = _resources(cluster, one_node(1, 0), *limits)
        asked = replace(asked, partition=cluster.companion_partition or cluster.partition)
        # The build is a condition as well, because "after" also holds if the serve job is cancelled before
        # its start, as it is if the build fails (sbatch(1), --dependency).
        stages.append(_stage("companion", job, paths, asked, after=(Dependency("after", "serve"), *built)))
    return tuple(stages)


def node_check_stage(job: JobFile, cluster: ClusterProfile, layout: Layout, paths: RunPaths) -> Stage:
    """Return the job of ``doctor --on-nodes``: the serve stage's resources, on few nodes for ten minutes."""
    limits = job.serve.cpus_per_rank, job.serve.memory_gib_per_node, _NODE_CHECK_MINUTES
    asked = _resources(cluster, layout, *limits)
    asked = replace(asked, tasks_per_node=layout.ranks_per_node, exclusive=cluster.exclusive)
    asked = replace(asked, gres=tuple(cluster.gres))
    return _stage("doctor", job, paths, asked)


def _stage(
    name: str, job: JobFile, paths: RunPaths, *components: Resources, after: tuple[Dependency, ...] = ()
) -> Stage:
    return Stage(name, f"{job.name}-{name}", str(paths.batch_log(name)), components, after)


def _resources(
    cluster: ClusterProfile, layout: Layout, cpus_per_task: int, memory_gib: int | str | None, minutes: int
) -> Resources:
    """Return the resources that every stage requests on this cluster."""
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
        cluster=cluster.slurm_cluster,
        partition=cluster.partition,
        account=cluster.account,
        qos=cluster.qos,
        reservation=cluster.reservation,
        constraint=cluster.constraint,
        options=tuple(cluster.sbatch_options),
    )
