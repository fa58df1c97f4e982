"""The plan: what will run, as one immutable value, with its stages: what each asks for and waits for.

The same job file, profile, run folder and Python give the same plan, and the
plan alone decides every byte that is rendered.
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
"""For a server's orderly end, before its time limit."""
_NODE_CHECK_MINUTES = 10
_DOWNLOAD_CPUS = 2
_DOWNLOAD_MINUTES = 480


@dataclass(frozen=True)
class ServePart:
    """Servers of a run that are alike, and their nodes: what the scripts for them differ in."""

    cluster: ClusterProfile
    """As these nodes have it."""
    layout: Layout
    """How the ranks of one server are spread."""
    allocation: Layout
    """What the serve stage asks for: all servers of the job, or of the component, together."""
    group: ServerGroup | None = None
    """The servers, of one phase of a disaggregated run; ``None``: they are all instances."""
    component: int | None = None
    """Of a heterogeneous job, whose nodes these are; ``None`` of another job."""

    @property
    def preflight(self) -> str:
        """The preflight's step on these nodes."""
        return preflight_step(self.component or 0)

    @property
    def rank_script(self) -> str:
        """The script that each task of a server runs."""
        return "rank.sh" if self.group is None else f"rank.{self.group.role}.sh"


@dataclass(frozen=True)
class Plan(PlanRecord):
    """A run, resolved: what its folder keeps, and what only the rendering needs."""

    task_python: str
    """Python that runs the runtime in a rank: inside the container, if there is one."""
    instances: Instances
    servers: tuple[ServerPlan, ...]
    """The server of each instance; of a disaggregated run the servers of each phase."""
    front: FrontPlan | None
    """What stands in front of the servers of a disaggregated run."""
    engines_folder: str
    """The cache of built engines."""
    build_steps: tuple[BuildStep, ...]
    """In order; the output of the last is the engine. Empty when no engine is built."""
    repository: tuple[RepositoryModel, ...] | RepositoryRecipe
    """Models with templates of our own (the reference backend), or how to fill upstream's."""
    all_models: str | None
    """Where the container has upstream's templates."""
    served_engines: tuple[ServedEngine, ...]
    """What the preflight checks."""
    facts: JobFacts
    notes: tuple[str, ...] = ()
    """What the user should know, though nothing is wrong."""

    @property
    def layout(self) -> Layout:
        """How the ranks of one instance are spread."""
        return self.instances.layout

    @property
    def parts(self) -> tuple[ServePart, ...]:
        """The nodes of the serve job: those of each component of a heterogeneous one, else all of them."""
        components = self.instances.components
        return self.phases if len(components) > 1 else (ServePart(self.cluster, self.layout, components[0]),)

    @property
    def phases(self) -> tuple[ServePart, ...]:
        """The servers of each phase of a disaggregated run, with the nodes that they are on."""
        components = self.instances.components
        parts = []
        for it in self.instances.groups:
            allocation = components[it.component or 0]
            cluster = self.cluster.for_phase(it.role)
            parts.append(ServePart(cluster, it.layout, allocation, it, it.component))
        return tuple(parts)

    @property
    def tries_network(self) -> bool:
        """Whether the job first tries the network between its nodes."""
        return self.job.preflight.network != "none" and self.instances.nodes > 1

    @property
    def has_proxy(self) -> bool:
        """Whether a proxy stands in front of the server, which is started and watched by a supervisor."""
        return self.job.serve.proxy != "none"

    @property
    def proxy_kinds(self) -> tuple[str, ...]:
        """What the proxy listens for, each at a port of its own."""
        kinds = self.backend.proxy_kinds
        return (*kinds, *OPENAI_KINDS) if self.has_gateway else kinds

    @property
    def has_gateway(self) -> bool:
        """Whether a gateway of ours, behind the proxy, speaks OpenAI's protocol."""
        return self.backend.can_have_gateway and self.has_proxy

    @property
    def backend(self) -> Backend:
        """How the model is served."""
        return backend_of(self.job)

    @property
    def server(self) -> ServerPlan:
        """The server, of a disaggregated run that of the first phase."""
        return self.servers[0]

    @property
    def spawns_workers(self) -> bool:
        """Whether the server starts its workers itself, by MPI within a job of Slurm."""
        return self.backend.spawns_workers and self.cluster.scheduler == "slurm"

    @property
    def needed_programs(self) -> tuple[str, ...]:
        """Programs that the preflight looks for on every node; each rank looks for its own server.

        None where the job file's commands, which run before the server, may install them.
        """
        if self.job.serve.prologue:
            return ()
        spec = self.server.spec
        own = () if spec.driver == "triton" else (spec.leader[0],)
        return (*own, *(() if spec.launcher is None else (spec.launcher,)))

    @property
    def restarts(self) -> int:
        """How often an instance is started again."""
        if not self.has_proxy:
            return 0  # the client knows the server by the address that it began with
        asked = self.job.serve.restarts
        return (3 if self.instances.count > 1 else 0) if asked is None else asked

    @property
    def roles(self) -> str:
        """The servers of each phase of a disaggregated run: ``context:0 generation:1,2``."""
        groups = self.instances.groups
        return " ".join(f"{it.role}:{','.join(str(one.number) for one in it.servers)}" for it in groups)

    @property
    def leaders(self) -> str:
        """The instances whose leaders are on each node, for the supervisor: ``0:0,1 2:2,3``."""
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
        """What the container sees: run folder, engines, folders of the job file, mounts of the profile."""
        caches = (self.engines_folder,) if self.build_steps else ()
        staged = (f"{it}:{it}:ro" for it in [self.cluster.node_models_folder] if self.staged_model)
        return (*all_mounts(self.job, self.cluster, (self.run_folder, *caches)), *staged)

    @property
    def caches_folder(self) -> str:
        """Parent of each user's cache folder; the nodes share it."""
        named = self.cluster.container.cache_folder
        if named is None or is_below(named, self.cluster.node_local_folders):
            return str(PurePosixPath(self.run_folder).parent)
        return named

    @property
    def staged_model(self) -> str | None:
        """Where the servers find the model on each node's own disk, if it is copied there."""
        return staged_model(self.facts, RunPaths(self.run_folder))

    @property
    def model_outside(self) -> str:
        """The model's folder, outside any container."""
        return outside(self.job.model.path or "", self.cluster.container.mounts)

    @property
    def fills_repository_in_job(self) -> bool:
        """Whether the repository is made by the serve stage's first step."""
        return isinstance(self.repository, RepositoryRecipe)

    @property
    def record(self) -> PlanRecord:
        """What outlives the rendering, for the run folder."""
        return PlanRecord(**{it.name: getattr(self, it.name) for it in fields(PlanRecord)})


def staged_model(facts: JobFacts, paths: RunPaths) -> str | None:
    """Return where a run's servers find the model on each node's own disk; ``None``: it is not copied."""
    folder, model = facts.cluster.node_models_folder, facts.job.model
    return paths.staged_model(folder, model.path) if model.stage and folder and model.path else None


# From a job file and a profile --------------------------------------------------------


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
        # "after" also holds when the serve job is cancelled before it starts, as
        # it is when the build fails (sbatch(1), --dependency): so both are named.
        stages.append(_stage("companion", job, paths, asked, after=(Dependency("after", "serve"), *built)))
    return tuple(stages)


def node_check_stage(job: JobFile, cluster: ClusterProfile, layout: Layout, paths: RunPaths) -> Stage:
    """The job of ``doctor --on-nodes``: what the serve stage asks for, on few nodes and for ten minutes."""
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
        cluster=cluster.slurm_cluster,
        partition=cluster.partition,
        account=cluster.account,
        qos=cluster.qos,
        reservation=cluster.reservation,
        constraint=cluster.constraint,
        options=tuple(cluster.sbatch_options),
    )
