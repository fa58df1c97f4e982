"""Job file and cluster profile to plan."""

from __future__ import annotations

from dataclasses import replace

from packaging.version import Version

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.plan import disaggregated, reference
from trtllm_hpc.plan.checkpoint import quantize_step
from trtllm_hpc.plan.layout import Instances, Layout, WantedGroup, one_node, place, place_groups, seats
from trtllm_hpc.plan.llm_api import LAUNCHER, serve_command, serve_yaml
from trtllm_hpc.plan.model import GENERATION, GENERATION_STEP, Plan, RepositoryModel, ServedEngine, ServerPlan
from trtllm_hpc.plan.stages import make_stages
from trtllm_hpc.runtime.engine_cache.recipe import BuildStep
from trtllm_hpc.runtime.model_repository.recipe import RepositoryRecipe
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts
from trtllm_hpc.tensorrt_llm.llm_api import unknown_keys
from trtllm_hpc.tensorrt_llm.releases import Release

MPI_KV_CACHE = "0.18.0", "0.20.0"
"""From the first release until the one before the second, only a variable makes disaggregated serving send
the KV cache by MPI (upstream's disaggregated_serving/README.md of 0.18.2 and 0.19.0)."""
NO_POOLS_SINCE = "24.06"
"""From the tag after this one on, an orchestrator's server must not take GPU memory for itself
(upstream's ``launch_triton_server.py``, ``check_triton_version``)."""


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
    engines = engines_folder or str(paths.folder.parent.parent / "engines")
    assert facts.unknown_release is None, facts.unknown_release
    chosen = cluster.python or python
    task_python = chosen if cluster.container.runtime == "none" else cluster.container.python
    release, engine = facts.release, job.engine.directory or str(paths.engine)
    instances = instances_of(job, cluster)
    layout = instances.layout
    steps, notes = _steps(facts, layout, task_python)
    return Plan(
        name=job.name,
        run_folder=str(paths.folder),
        python=chosen,
        task_python=task_python,
        instances=instances,
        server=_server_plan(facts, layout, paths),
        phase_servers=_phase_servers(facts, instances, paths),
        release=release.version if release is not None and facts.assumed_release is None else None,
        engines_folder=engines,
        engine_folder=engine,
        engine_found=None,
        build_steps=steps,
        repository=_repository(facts, paths),
        repository_values={} if job.engine.is_tensorrt_llm else reference.repository_values(job, engine),
        templates=templates,
        all_models=cluster.container.all_models
        or (release.paths.all_models if release is not None else None),
        stages=make_stages(job, cluster, instances, paths, builds=bool(steps)),
        served_engines=_served_engines(job, engine, str(paths.side_output(GENERATION_STEP))),
        facts=facts,
        notes=(*notes, *seats(instances), *_release_notes(facts), *_door_notes(job)),
    )


def with_engine(plan: Plan, engine: str) -> Plan:
    """Return the plan without its build stage: the engine is in the cache."""
    stages = make_stages(plan.job, plan.cluster, plan.instances, RunPaths(plan.run_folder), builds=False)
    return replace(plan, engine_found=engine, stages=stages)


def instances_of(job: JobFile, cluster: ClusterProfile) -> Instances:
    """Return how the instances and their ranks are spread over nodes and GPUs."""
    phases = job.serve.disaggregated
    if job.serve.mode == "disaggregated" and phases is not None and job.frontend == "openai":
        wanted = [
            WantedGroup(
                role,
                phase.servers,
                job.with_phase(phase).engine.world_size,
                cluster.for_phase(role).gpus_per_node,
            )
            for role, phase in disaggregated.phases_of(phases)
        ]
        spread = job.serve.placement == "spread"
        return place_groups(wanted, spread=spread, apart=cluster.phases is not None)
    if job.serve.mode == "disaggregated" and phases is not None:
        # The orchestrator, and a rank for each GPU of each copy.
        ranks = 1 + sum(map(len, phases.context.instances + phases.generation.instances))
        return Instances(1, 1, one_node(ranks, _gpus_named(job, cluster)))
    if job.serve.mode == "orchestrator":
        return Instances(1, 1, one_node(1, _gpus_named(job, cluster)))
    if not job.engine.has_engine and cluster.scheduler == "local":
        # Without Slurm there is no launcher: the LLM API starts its workers itself.
        return Instances(1, 1, one_node(1, job.engine.world_size if cluster.gpus_per_node else 0))
    serve = job.serve
    return place(
        serve.instances,
        job.engine.world_size,
        nodes=serve.nodes,
        gpus_per_node=cluster.gpus_per_node,
        per_gpu=serve.instances_per_gpu,
        spread=serve.placement == "spread" and cluster.scheduler != "local",
    )


def _served_engines(job: JobFile, own: str, generation: str) -> tuple[ServedEngine, ...]:
    """The engines that the ranks load, without the same one twice."""
    if not job.engine.has_engine:
        return ()
    served = [ServedEngine(copy.engine or own, len(copy.gpu_device_ids)) for copy in job.repository.models]
    phases = job.serve.disaggregated
    if phases is not None:
        second = own if job.generation is None else generation
        served = [
            ServedEngine(phase.engine or built, len(phase.instances[0]))
            for phase, built in ((phases.context, own), (phases.generation, second))
        ]
    return tuple(dict.fromkeys(served or [ServedEngine(own, job.engine.world_size)]))


def _gpus_named(job: JobFile, cluster: ClusterProfile) -> int:
    """GPUs that the job file names, from 0 on; none on a cluster without."""
    phases = job.serve.disaggregated
    copies = [copy.gpu_device_ids for copy in job.repository.models]
    if phases is not None:
        copies += phases.context.instances + phases.generation.instances
    return min(cluster.gpus_per_node, 1 + max((gpu for gpus in copies for gpu in gpus), default=-1))


def _release_notes(facts: JobFacts) -> tuple[str, ...]:
    given, notes = facts.job.engine.llm_api, []
    moe = given.get("moe_config")
    if (
        isinstance(moe, dict)
        and moe.get("backend") == "TRITON"
        and facts.image_is_at_least("1.3") is not False
    ):
        notes.append("moe_config.backend TRITON is deprecated from TensorRT-LLM 1.3 on; CUTLASS replaces it")
    if facts.assumed_release is None or facts.release is None:
        return tuple(notes)
    notes.append(
        f"{facts.assumed_release.message.rstrip('.')}: options and keys are assumed to be those of "
        f"{facts.release.version}, the nearest known release"
    )
    near = {key.path for key in unknown_keys(facts.release, given)}
    strange = [key.path for key in unknown_keys(None, given) if key.path in near]
    if strange:
        names = ", ".join(f"engine.llm_api.{path}" for path in strange)
        notes.append(f"passed on as written, since no release known here has them: {names}")
    return tuple(notes)


def _door_notes(job: JobFile) -> tuple[str, ...]:
    if job.serve.door == "none" or job.serve.key:
        return ()
    return ("serve.key is false: everybody who reaches the server's node may call and control the server",)


def _steps(facts: JobFacts, layout: Layout, python: str) -> tuple[tuple[BuildStep, ...], tuple[str, ...]]:
    """The steps that build the engine, or quantize a checkpoint, and what the user should know of them."""
    if facts.job.engine.quantizes_checkpoint:
        return (quantize_step(facts, python),), ()
    if facts.job.engine.directory is not None or not facts.job.engine.has_engine:
        return (), ()
    if facts.release is None:
        return reference.build_steps(facts.job, python), ()
    from trtllm_hpc.plan.build_steps import make_notes, make_steps, with_variant

    steps = make_steps(facts, layout)
    if facts.job.generation is not None:
        others = make_steps(replace(facts, job=facts.job.generation), layout)
        # Adapters are converted once, whatever the engine.
        steps = (*with_variant([step for step in others if step.name != "lora"], GENERATION), *steps)
    return steps, make_notes(facts)


def _repository(facts: JobFacts, paths: RunPaths) -> tuple[RepositoryModel, ...] | RepositoryRecipe:
    if facts.job.frontend == "openai":
        return ()
    if facts.release is None:
        return reference.repository()
    from trtllm_hpc.plan import repository

    return repository.recipe(facts, facts.release, paths)


def _server_plan(facts: JobFacts, layout: Layout, paths: RunPaths, role: str | None = None) -> ServerPlan:
    """Models of the workers, environment and further options of every rank's server."""
    job, release = facts.job, facts.release
    # Without it each server would spawn its workers by MPI, which Slurm's PMIx does not offer.
    launcher = LAUNCHER if facts.cluster.scheduler == "slurm" else None
    if job.frontend == "openai":
        return ServerPlan(
            worker_models=(),
            launcher=launcher,
            command=serve_command(facts, layout, paths, role),
            configuration=serve_yaml(facts, paths, role),
            front=disaggregated.front_command(job) if job.serve.mode == "disaggregated" else (),
            front_configuration=disaggregated.front_file(job) if job.serve.mode == "disaggregated" else {},
        )
    if not job.engine.has_engine:
        return ServerPlan(worker_models=(), launcher=launcher)
    if job.serve.mode == "orchestrator":
        spawning = {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1"}
        return ServerPlan(worker_models=(), environment=spawning, options=_pools(release, layout))
    if job.serve.mode == "disaggregated":
        fixed = {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "0"}
        if (
            release is not None
            and release.at_least(MPI_KV_CACHE[0])
            and not release.at_least(MPI_KV_CACHE[1])
        ):
            fixed["TRTLLM_USE_MPI_KVCACHE"] = "1"
        return ServerPlan(worker_models=("context", "generation"), environment=fixed)
    return ServerPlan(worker_models=("tensorrt_llm",))


def _phase_servers(facts: JobFacts, instances: Instances, paths: RunPaths) -> tuple[ServerPlan, ...]:
    """The servers of each phase, in the order of ``instances.groups``."""
    phases = facts.job.serve.disaggregated
    if phases is None or not instances.groups:
        return ()
    servers, job = [], disaggregated.with_buffer(facts.job)
    for (role, phase), group in zip(disaggregated.phases_of(phases), instances.groups, strict=True):
        of_phase = replace(facts, job=job.with_phase(phase))
        server = _server_plan(of_phase, group.layout, paths, role)
        servers.append(replace(server, environment=disaggregated.transfer_environment(facts)))
    return tuple(servers)


def _pools(release: Release | None, layout: Layout) -> tuple[str, ...]:
    tags = release.tags if release is not None else ()
    if tags and max(map(Version, tags)) <= Version(NO_POOLS_SINCE):
        return ()
    pools = (f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(layout.gpus_per_node))
    return ("--pinned-memory-pool-byte-size=0", "--enable-peer-access=false", *pools)
