"""Job file and cluster profile to plan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.errors import RenderError
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.plan.backends import reference
from trtllm_hpc.plan.layout import Layout, make_layout, one_node
from trtllm_hpc.plan.model import Plan, RepositoryModel
from trtllm_hpc.plan.server import disaggregated_ranks, server_plan
from trtllm_hpc.plan.stages import make_stages
from trtllm_hpc.runtime.engine_cache.recipe import BuildStep
from trtllm_hpc.runtime.model_repository.recipe import RepositoryRecipe
from trtllm_hpc.tensorrt_llm.release_of_job import release_of
from trtllm_hpc.tensorrt_llm.releases import Release, UnknownRelease


@dataclass(frozen=True)
class Surroundings:
    """What was found on this machine when the plan was made; a plan depends on nothing else."""

    engines_folder: str | None = None
    """The cache of engines; ``None`` is ``engines`` beside the folder of runs."""
    engine_found: str | None = None
    """The engine that the job asks for, if the cache has it."""
    templates: str | None = None
    """Folder of upstream's model templates, if this machine has the image's."""
    model_config: Mapping[str, Any] | None = field(default=None)
    """The model's ``config.json``, if it can be read here."""


def make_plan(
    job: JobFile,
    cluster: ClusterProfile,
    paths: RunPaths,
    python: str,
    around: Surroundings | None = None,
) -> Plan:
    """Resolve a job file and a profile into a plan.

    Args:
        python: the interpreter to use on the nodes when the profile names none.
        around: what was found on this machine; nothing by default.

    Raises:
        RenderError: the ranks cannot be laid out, or the run folder's name
            means something else to Slurm or to the container runtime.
    """
    around = around or Surroundings()
    engines = around.engines_folder or str(paths.folder.parent.parent / "engines")
    _refuse_folders(paths, cluster, engines)
    chosen = cluster.python or python
    task_python = chosen if cluster.container.runtime == "none" else cluster.container.python
    release = _release(job, cluster)
    layout = _layout(job, cluster)
    steps = _steps(job, cluster, release, layout, task_python, around)
    builds = bool(steps) and around.engine_found is None
    return Plan(
        name=job.name,
        run_folder=str(paths.folder),
        python=chosen,
        task_python=task_python,
        layout=layout,
        server=server_plan(job, release, layout, with_slurm=cluster.scheduler == "slurm"),
        release=release.version if release is not None else None,
        engines_folder=engines,
        engine_folder=job.engine.directory or str(paths.engine),
        engine_found=around.engine_found if steps else None,
        build_steps=steps,
        repository=_repository(job, release, paths, around),
        repository_values=_repository_values(job, paths),
        templates=around.templates,
        all_models=cluster.container.all_models
        or (release.paths.all_models if release is not None else None),
        stages=make_stages(job, cluster, layout, paths, builds=builds),
        job=job,
        cluster=cluster,
        notes=_notes(job, release, around),
    )


def _release(job: JobFile, cluster: ClusterProfile) -> Release | None:
    try:
        return release_of(job, cluster)
    except UnknownRelease as error:
        # Files that were loaded have been judged; this is for plans made in other ways.
        raise RenderError(f"{error.message}.", hint=error.hint) from None


def _layout(job: JobFile, cluster: ClusterProfile) -> Layout:
    if job.serve.mode == "disaggregated" and job.serve.disaggregated is not None:
        return one_node(disaggregated_ranks(job.serve.disaggregated), _gpus_named(job, cluster))
    if job.serve.mode == "orchestrator":
        return one_node(1, _gpus_named(job, cluster))
    layout = make_layout(job.engine.world_size, job.serve.nodes, cluster.gpus_per_node)
    if cluster.scheduler == "local" and layout.nodes > 1:
        raise RenderError(
            f"The profile {cluster.name!r} is one machine, but the job file asks for {layout.nodes} nodes.",
            hint="leave serve.nodes out, or choose a Slurm profile with --cluster",
        )
    return layout


def _gpus_named(job: JobFile, cluster: ClusterProfile) -> int:
    """GPUs that the job file names, from 0 on; none on a cluster without."""
    phases = job.serve.disaggregated
    copies = [copy.gpu_device_ids for copy in job.repository.models]
    if phases is not None:
        copies += [gpus for phase in (phases.context, phases.generation) for gpus in phase.instances]
    return min(cluster.gpus_per_node, 1 + max((gpu for gpus in copies for gpu in gpus), default=-1))


def _repository_values(job: JobFile, paths: RunPaths) -> dict[str, str | int | bool]:
    if job.engine.is_tensorrt_llm:
        return {}
    return reference.repository_values(job, job.engine.directory or str(paths.engine))


def _steps(
    job: JobFile,
    cluster: ClusterProfile,
    release: Release | None,
    layout: Layout,
    python: str,
    around: Surroundings,
) -> tuple[BuildStep, ...]:
    if job.engine.directory is not None or not job.engine.has_engine:
        return ()
    if release is None:
        return reference.build_steps(job, python)
    from trtllm_hpc.plan.backends import tensorrt_llm

    return tensorrt_llm.make_steps(job, cluster, release, layout, around.model_config)


def _notes(job: JobFile, release: Release | None, around: Surroundings) -> tuple[str, ...]:
    if release is None:
        return ()
    from trtllm_hpc.plan.backends import tensorrt_llm

    return tensorrt_llm.make_notes(job, release, around.model_config)


def _repository(
    job: JobFile, release: Release | None, paths: RunPaths, around: Surroundings
) -> tuple[RepositoryModel, ...] | RepositoryRecipe:
    if release is None:
        return reference.repository()
    from trtllm_hpc.plan.backends import repository

    return repository.recipe(job, release, paths, around.model_config)


def _refuse_folders(paths: RunPaths, cluster: ClusterProfile, engines: str) -> None:
    _refuse("run folder", str(paths.folder), cluster, "choose another folder with --runs")
    _refuse("cache of engines", engines, cluster, "set engines_folder in the cluster profile to another")


def _refuse(what: str, folder: str, cluster: ClusterProfile, hint: str) -> None:
    # srun and sbatch expand %x patterns in --output, and a backslash in it
    # switches them off altogether (sbatch(1), "filename pattern").
    # Surrogates stand for bytes that are no UTF-8, which the scripts are.
    bad = set(re.findall(r"[%\\\x00-\x1f\x7f\ud800-\udfff]", folder))
    if cluster.container.runtime != "none":
        bad |= set(re.findall(r"[,:]", folder))  # they separate mounts
    if bad:
        listed = ", ".join(repr(character) for character in sorted(bad))
        raise RenderError(
            f"The {what} {folder!r} has {listed} in its name, which Slurm or a container misreads.",
            hint=hint,
        )
