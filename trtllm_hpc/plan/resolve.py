"""Job file and cluster profile to plan."""

from __future__ import annotations

import re

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.errors import RenderError
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.plan.backends import reference
from trtllm_hpc.plan.layout import make_layout
from trtllm_hpc.plan.model import Plan
from trtllm_hpc.plan.stages import make_stages


def make_plan(job: JobFile, cluster: ClusterProfile, paths: RunPaths, python: str) -> Plan:
    """Resolve a job file and a profile into a plan.

    Args:
        python: the interpreter to use on the nodes when the profile names none.

    Raises:
        RenderError: the ranks cannot be laid out, or the run folder's name
            means something else to Slurm or to the container runtime.
    """
    _refuse_folder(paths, cluster)
    chosen = cluster.python or python
    task_python = chosen if cluster.container.runtime == "none" else cluster.container.python
    layout = make_layout(job.engine.world_size, job.serve.nodes, cluster.gpus_per_node)
    if cluster.scheduler == "local" and layout.nodes > 1:
        raise RenderError(
            f"The profile {cluster.name!r} is one machine, but the job file asks for {layout.nodes} nodes.",
            hint="leave serve.nodes out, or choose a Slurm profile with --cluster",
        )
    engine_folder = job.engine.directory or str(paths.engine)
    builds = job.engine.directory is None
    return Plan(
        name=job.name,
        run_folder=str(paths.folder),
        python=chosen,
        task_python=task_python,
        layout=layout,
        engine_folder=engine_folder,
        build_steps=reference.build_steps(job, task_python, paths) if builds else (),
        repository=reference.repository(),
        repository_values=reference.repository_values(job, engine_folder),
        stages=make_stages(job, cluster, layout, paths),
        job=job,
        cluster=cluster,
    )


def _refuse_folder(paths: RunPaths, cluster: ClusterProfile) -> None:
    folder = str(paths.folder)
    # srun and sbatch expand %x patterns in --output, and a backslash in it
    # switches them off altogether (sbatch(1), "filename pattern").
    # Surrogates stand for bytes that are no UTF-8, which the scripts are.
    bad = set(re.findall(r"[%\\\x00-\x1f\x7f\ud800-\udfff]", folder))
    if cluster.container.runtime != "none":
        bad |= set(re.findall(r"[,:]", folder))  # they separate mounts
    if bad:
        listed = ", ".join(repr(character) for character in sorted(bad))
        raise RenderError(
            f"The run folder {folder!r} has {listed} in its name, which Slurm or a container misreads.",
            hint="choose another folder with --runs",
        )
