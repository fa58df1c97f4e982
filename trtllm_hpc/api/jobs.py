"""Plan, render, submit and check job files."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trtllm_hpc.api.run import Run
from trtllm_hpc.config.files import default_profile, profile_origins
from trtllm_hpc.paths import engines_folder
from trtllm_hpc.runs.create import JobSource, Warn, create_run, plan_run, search_cache
from trtllm_hpc.validation.checks import DoctorReport, check_rendering, check_submission
from trtllm_hpc.validation.context import Context
from trtllm_hpc.validation.load import load, load_cluster

if TYPE_CHECKING:
    from trtllm_hpc.config.job import JobFile
    from trtllm_hpc.plan.model import Plan

_warn: Warn = logging.getLogger("trtllm_hpc").warning


def load_job(job: Path | str, cluster: Path | str | None = None, settings: Sequence[str] = ()) -> JobFile:
    """Return the typed model of a job file with all layers: defaults, profile, file and settings.

    Args:
        job: path of a job file, or the name of a shipped one.
        cluster: path or name of a profile, whose ``job_defaults`` are one of the layers; by default
            ``$TRTLLM_HPC_CLUSTER``, else the profile ``default``, else ``sandbox``.
        settings: overrides such as ``serve.nodes=2``, as for ``--set``.

    Raises:
        ConfigError: with ``diagnostics`` about each error in files and settings.
    """
    return load(Path(job), default_profile(cluster), tuple(settings)).job


def plan(
    job: Path | str,
    cluster: Path | str | None = None,
    settings: Sequence[str] = (),
    runs: Path | str | None = None,
) -> Plan:
    """Return the plan for a job file and a profile, without writing anything.

    Args:
        runs: folder of run folders; by default ``$TRTLLM_HPC_RUNS``, else the user's, the profile's or
            ``./runs``.

    Other arguments and errors are those of :func:`load_job`.

    Raises:
        RenderError: a script cannot contain a path.
    """
    with plan_run(JobSource.of(job, cluster, settings, runs), command="render") as planned:
        return planned


def render(
    job: Path | str,
    cluster: Path | str | None = None,
    settings: Sequence[str] = (),
    runs: Path | str | None = None,
    *,
    on_warning: Warn = _warn,
) -> Run:
    """Write a run folder with all its scripts, without submitting it.

    Args:
        on_warning: called with each warning of one or more lines; by default they go to :mod:`logging`.

    Other arguments and errors are those of :func:`plan`.
    """
    source = JobSource.of(job, cluster, settings, runs)
    return Run(*create_run(source, check=check_rendering, warn=on_warning, command="render"))


def submit(
    job: Path | str,
    cluster: Path | str | None = None,
    settings: Sequence[str] = (),
    runs: Path | str | None = None,
    *,
    ignored_checks: Collection[str] = (),
    on_warning: Warn = _warn,
) -> Run:
    """Check a job like ``doctor``, and submit all of its stages or none.

    Args:
        ignored_checks: IDs of checks that may fail.

    Other arguments are those of :func:`render`.

    Raises:
        ConfigError, RenderError: see :func:`plan`; or a check fails.
        SubmissionError: Slurm refuses a script or is missing, or the run was cancelled meanwhile.
    """
    from trtllm_hpc.runs.submit import require_scheduler, sole_command, submit_stages

    def check(plan: Plan) -> list[str]:
        require_scheduler(plan.cluster)
        return check_submission(plan, ignored_checks)

    source = JobSource.of(job, cluster, settings, runs)
    run = Run(*create_run(source, check=check, warn=on_warning, command="submit"))
    with sole_command(run.paths):
        submit_stages(run.paths)
    return run


def doctor(
    job: Path | str | None = None,
    cluster: Path | str | None = None,
    settings: Sequence[str] = (),
    runs: Path | str | None = None,
    *,
    ignored_checks: Collection[str] = (),
) -> DoctorReport:
    """Check this machine, the cluster and, if there is one, a job.

    Writes nothing except the small files of a ``model.hub``. Failed checks do not raise: see ``ok`` and
    ``checks`` of the report. Arguments and errors are those of :func:`plan` and :func:`submit`.
    """
    from trtllm_hpc.runs.hub import runs_folder
    from trtllm_hpc.tensorrt_llm.memory import MemoryPlan
    from trtllm_hpc.validation.checks import ignoring, run_checks
    from trtllm_hpc.validation.job_checks import memory_of

    if job is None:
        profile = load_cluster(default_profile(cluster), tuple(settings))
        folder = Path(runs or runs_folder(profile)).absolute()
        context = Context(profile, folder, engines_folder(profile.engines_folder, folder))
    else:
        with plan_run(JobSource.of(job, cluster, settings, runs), command="doctor") as planned:
            context = Context.of_plan(search_cache(planned)[0])
    checks = ignoring(run_checks(context), ignored_checks)
    memory = memory_of(context) if context.has_job else None
    return DoctorReport(
        checks=tuple(checks),
        memory=memory if isinstance(memory, MemoryPlan) else None,
        notes=(*(context.plan.notes if context.has_job else ()), *profile_origins(default_profile(cluster))),
    )
