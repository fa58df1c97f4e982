"""The three stages: resources, dependencies and ``#SBATCH`` lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from trtllm_hpc.backends import backend_of
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.layout import Instances, Layout, one_node
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.plan.model import Component, Dependency, Directive, Stage

_STOP_SECONDS = 60
"""For a server's orderly end, before its time limit."""
NODE_CHECK_MINUTES = 10
_WITH_RANKS = ("serve", "doctor")


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
