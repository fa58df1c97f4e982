"""The three stages: resources, dependencies and ``#SBATCH`` lines."""

from __future__ import annotations

from collections.abc import Iterator

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.plan.layout import Layout
from trtllm_hpc.plan.model import Dependency, Directive, Stage


def make_stages(
    job: JobFile, cluster: ClusterProfile, layout: Layout, paths: RunPaths, *, builds: bool
) -> tuple[Stage, ...]:
    """The stages of a run, in the order of submission."""
    stages = []
    if builds:
        stages.append(_build(job, cluster, paths))
    built = _if_built(bool(stages))
    stages.append(_serve(job, cluster, layout, paths, built))
    if job.companion.enabled and cluster.companion == "job":
        # "after" also holds when the serve job is cancelled before it starts, as
        # it is when the build fails (sbatch(1), --dependency): so both are named.
        stages.append(_companion(job, cluster, paths, (Dependency("after", "serve"), *built)))
    return tuple(stages)


def build_gpus(job: JobFile, cluster: ClusterProfile) -> int:
    """GPUs of the build stage. TensorRT tunes its kernels on the GPU that will run them."""
    if job.build.gpus is not None:
        return job.build.gpus
    return 1 if job.engine.is_tensorrt_llm and cluster.gpus_per_node else 0


def _if_built(has_build: bool) -> tuple[Dependency, ...]:
    return (Dependency("afterok", "build"),) if has_build else ()


def _build(job: JobFile, cluster: ClusterProfile, paths: RunPaths) -> Stage:
    directives = [
        *_common("build", job.name, cluster, paths),
        Directive("--nodes", 1),
        Directive("--ntasks", 1),
        Directive("--cpus-per-task", job.build.cpus),
        *_memory(job.build.memory_gib),
        *_gpus(cluster, build_gpus(job, cluster)),
        *_time(job.build.time_limit_minutes),
        *_raw(cluster),
    ]
    return Stage("build", tuple(directives), (), job.build.cpus, build_gpus(job, cluster))


def _serve(
    job: JobFile,
    cluster: ClusterProfile,
    layout: Layout,
    paths: RunPaths,
    after: tuple[Dependency, ...],
) -> Stage:
    directives = [
        *_common("serve", job.name, cluster, paths),
        Directive("--nodes", layout.nodes),
        Directive("--ntasks", layout.world_size),
        Directive("--ntasks-per-node", layout.ranks_per_node),
        Directive("--cpus-per-task", job.serve.cpus_per_rank),
        *_memory(job.serve.memory_gib_per_node),
        *_gpus(cluster, layout.gpus_per_node),
        *([Directive("--exclusive")] if cluster.exclusive else []),
        *_time(job.serve.time_limit_minutes),
        *_raw(cluster),
    ]
    return Stage("serve", tuple(directives), after, job.serve.cpus_per_rank, layout.gpus_per_node)


def _companion(
    job: JobFile, cluster: ClusterProfile, paths: RunPaths, after: tuple[Dependency, ...]
) -> Stage:
    companion = job.companion
    directives = [
        *_common("companion", job.name, cluster, paths),
        Directive("--nodes", 1),
        Directive("--ntasks", 1),
        Directive("--cpus-per-task", companion.cpus),
        *_memory(companion.memory_gib),
        *_time(companion.time_limit_minutes),
        *_raw(cluster),
    ]
    return Stage("companion", tuple(directives), after, companion.cpus)


def _common(stage: str, name: str, cluster: ClusterProfile, paths: RunPaths) -> Iterator[Directive]:
    partition = cluster.companion_partition if stage == "companion" else None
    yield Directive("--job-name", f"{name}-{stage}")
    yield Directive("--output", str(paths.batch_log(stage)))
    # A requeued or resubmitted job must not overwrite the log of the attempt before.
    yield Directive("--open-mode", "append")
    # A requeued job would start a server without a companion.
    yield Directive("--no-requeue")
    for option, value in (
        ("--partition", partition or cluster.partition),
        ("--account", cluster.account),
        ("--qos", cluster.qos),
        ("--reservation", cluster.reservation),
        ("--constraint", cluster.constraint),
    ):
        if value is not None:
            yield Directive(option, value)


def _memory(gib: int | None) -> list[Directive]:
    return [] if gib is None else [Directive("--mem", f"{gib}G")]


def _gpus(cluster: ClusterProfile, count: int) -> list[Directive]:
    if not count or cluster.gpu_request == "none":
        return []
    if cluster.gpu_request == "gres":
        return [Directive("--gres", f"gpu:{count}")]
    return [Directive("--gpus-per-node", count)]


def _time(minutes: int) -> list[Directive]:
    # A bare number is minutes (sbatch(1), --time).
    return [Directive("--time", minutes)]


def _raw(cluster: ClusterProfile) -> Iterator[Directive]:
    for option in cluster.sbatch_options:
        name, separator, value = option.partition("=")
        yield Directive(name, value if separator else None)
