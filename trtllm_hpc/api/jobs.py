"""Plan, render, submit and check a job file."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trtllm_hpc.api.run import Run
from trtllm_hpc.config.files import default_profile, profile_origins
from trtllm_hpc.paths import engines_folder
from trtllm_hpc.runs.create import Check, JobSource, Warn, create_run, plan_run, preview_run, search_cache
from trtllm_hpc.validation.checks import DoctorReport, check_rendering, check_submission
from trtllm_hpc.validation.context import Context
from trtllm_hpc.validation.load import load, load_cluster

if TYPE_CHECKING:
    from trtllm_hpc.config.job import JobFile
    from trtllm_hpc.engine_cache import CachedEngine
    from trtllm_hpc.plan.model import Plan

_warn: Warn = logging.getLogger("trtllm_hpc").warning


def load_job(job: Path | str, cluster: Path | str | None = None, settings: Sequence[str] = ()) -> JobFile:
    """Return a job file as its typed model, merged from defaults, profile, job file and settings.

    Args:
        job: path of a job file, or the name of a shipped one.
        cluster: path or name of a profile, whose ``job_defaults`` apply below the job file; by default
            ``$TRTLLM_HPC_CLUSTER``, else the profile called ``default``, else ``sandbox``.
        settings: overrides such as ``serve.nodes=2``, as for ``--set``.

    Raises:
        ConfigError: a file or a setting is wrong; its ``diagnostics`` name each mistake and its place.
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
        runs: folder of the runs; by default ``$TRTLLM_HPC_RUNS``, the user's, the profile's, else ``./runs``.

    The other arguments and errors are those of :func:`load_job`.

    Raises:
        RenderError: a path contains characters that a script cannot contain.
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
    """Write a run folder with all its scripts, and submit nothing.

    Args:
        on_warning: called with each warning, a line or more; by default warnings go to :mod:`logging`.

    The other arguments and errors are those of :func:`plan`.
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
    """Check a job, and submit it: all of its stages or none.

    The checks are those of ``doctor``, without those that ask Slurm's controller: ``sbatch`` asks it itself.

    Args:
        ignored_checks: IDs of checks whose failure does not stop the submission.

    The other arguments are those of :func:`render`.

    Raises:
        ConfigError: as for :func:`plan`, or a check failed.
        RenderError: as for :func:`plan`.
        SubmissionError: Slurm is missing or refused a script, or the run was cancelled meanwhile.
    """
    from trtllm_hpc.runs.submit import sole_command, submit_stages

    source, check = JobSource.of(job, cluster, settings, runs), _submission_check(ignored_checks)
    run = Run(*create_run(source, check=check, warn=on_warning, command="submit"))
    with sole_command(run.paths):
        submit_stages(run.paths)
    return run


def preview(
    job: Path | str,
    cluster: Path | str | None = None,
    settings: Sequence[str] = (),
    runs: Path | str | None = None,
    *,
    ignored_checks: Collection[str] = (),
    on_warning: Warn = _warn,
) -> tuple[Plan, CachedEngine | None]:
    """Check and render a job as :func:`submit` does, and write nothing.

    Returns the plan, and what the search in the engine cache found. Arguments and errors are those of
    :func:`submit`.
    """
    source, check = JobSource.of(job, cluster, settings, runs), _submission_check(ignored_checks)
    return preview_run(source, check=check, warn=on_warning)


def _submission_check(ignored_checks: Collection[str]) -> Check:
    from trtllm_hpc.runs.submit import require_scheduler

    def check(plan: Plan) -> list[str]:
        require_scheduler(plan.cluster)
        return check_submission(plan, ignored_checks)

    return check


def doctor(
    job: Path | str | None = None,
    cluster: Path | str | None = None,
    settings: Sequence[str] = (),
    runs: Path | str | None = None,
    *,
    ignored_checks: Collection[str] = (),
) -> DoctorReport:
    """Check a job, this machine and the cluster; without a job, only the machine and the cluster.

    With ``model.hub``, the model's small files (such as ``config.json``) are downloaded. Nothing else is
    written. A failed check raises no exception: see ``ok`` and ``checks`` of the report. Arguments and errors
    are those of :func:`plan` and :func:`submit`.
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
