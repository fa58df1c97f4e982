"""One job for all variants of a sweep: its script, its resources, and its submission."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import replace

from trtllm_hpc import __version__
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.files import read_cluster, read_spec
from trtllm_hpc.logs.snapshot import readable_plan
from trtllm_hpc.paths import RunPaths, write_text
from trtllm_hpc.render.environment import render_template
from trtllm_hpc.runs.status import SWEEP_JOB_NAME, sweep_job
from trtllm_hpc.runtime.plan_record import PlanRecord, Stage
from trtllm_hpc.runtime.process import signal_group, start_ticks
from trtllm_hpc.runtime.records import TOKEN_VARIABLE
from trtllm_hpc.scheduler.discovery import query_limits
from trtllm_hpc.scheduler.local import StageScript
from trtllm_hpc.scheduler.slurm import Slurm
from trtllm_hpc.scheduler.submission_record import StageJob, SubmissionRecord
from trtllm_hpc.sweeps.record import SweepPaths, SweepRecord

_STAGE = "sweep"


def submit_in_one(paths: SweepPaths, record: SweepRecord, names: Sequence[str]) -> None:
    """Submit one job that runs these variants, whose stages are ready to run, in their order.

    Raises SubmissionError if Slurm refuses it.
    """
    plans = {run: readable_plan(run) for run in map(paths.run, names)}
    first, plan = next(iter(plans.items()))
    cluster = read_cluster(first.cluster)
    minutes = record.time_limit_minutes or _minutes(plans, cluster)
    here = RunPaths(paths.folder)
    for folder in (here.scripts, here.logs):
        folder.mkdir(exist_ok=True)
    script = render_template(
        "scripts/sweep.sbatch.j2",
        stage=_stage(list(plans.values()), here, minutes),
        folder=str(paths.folder),
        python=plan.python,
        runtime=str(first.runtime),
        minutes=minutes,
        names=names,
        version=__version__,
    )
    write_text(here.sbatch(_STAGE), script, mode=0o700)
    token = SubmissionRecord(cluster.scheduler).token
    job_id, started = _start(here, cluster, token)
    job = StageJob(job_id, time.time(), started)
    try:
        for run, planned in plans.items():
            of_run = SubmissionRecord(cluster.scheduler, token, cluster.slurm_conf, complete=True)
            of_run.within = str(paths.folder)
            of_run.stages = {stage.name: job for stage in planned.stages}
            of_run.write(run)
    except BaseException:  # Ctrl-C above all: a job that nobody knows must not hold nodes
        if cluster.scheduler == "local":
            signal_group(int(job_id), signal.SIGTERM)
        else:
            Slurm(cluster.slurm_conf).cancel([sweep_job(str(paths.folder), job_id)])
        raise


def _start(here: RunPaths, cluster: ClusterProfile, token: str) -> tuple[str, int | None]:
    """Start the job; return its id and, of a process of this machine, when it started."""
    script = StageScript(str(here.folder), _STAGE, (), ((TOKEN_VARIABLE, token),))
    if cluster.scheduler == "slurm":
        from trtllm_hpc.scheduler.executor import RenderedScriptExecutor

        return RenderedScriptExecutor(here.folder, cluster.slurm_conf).submit(script).job_id, None
    process = script.start()
    return str(process.pid), start_ticks(process.pid)


def _minutes(plans: dict[RunPaths, PlanRecord], cluster: ClusterProfile) -> int:
    """Return the job's time limit: what all variants may need together, and the partition allows."""
    needed = 0
    for run, plan in plans.items():
        job = read_spec(run.spec)
        needed += job.serve.time_limit_minutes
        needed += job.build.time_limit_minutes if plan.stage("build") is not None else 0
    bounds = [needed, cluster.limits.time_minutes]
    for it in query_limits(cluster.slurm_conf) if cluster.scheduler == "slurm" else ():
        if it.is_default if cluster.partition is None else it.name == cluster.partition:
            bounds.append(it.minutes)
    return min(minutes for minutes in bounds if minutes is not None)


def _stage(plans: Sequence[PlanRecord], here: RunPaths, minutes: int) -> Stage:
    """Return the job as a stage: it asks for the most of everything that a stage of any variant asks for."""
    asked = [stage.first for plan in plans for stage in plan.stages]
    serve = next(stage.first for stage in plans[0].stages if stage.name == "serve")
    resources = replace(
        serve,
        nodes=max(it.nodes for it in asked),
        tasks=None,
        tasks_per_node=1,
        cpus_per_task=max(it.cpus_per_task * (it.tasks_per_node or 1) for it in asked),
        memory_gib=max((it.memory_gib for it in asked if it.memory_gib is not None), default=None),
        gpus_per_node=max(it.gpus_per_node for it in asked),
        minutes=minutes,
        warning_seconds=None,
    )
    return Stage(_STAGE, SWEEP_JOB_NAME, str(here.batch_log(_STAGE)), (resources,))
