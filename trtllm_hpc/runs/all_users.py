"""The runs of all users of a cluster, by Slurm's accounting: their run folders are closed to others."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

from trtllm_hpc.runs.status import RunState
from trtllm_hpc.scheduler.job_info import JobInfo
from trtllm_hpc.scheduler.slurm import Slurm

_SUBMIT_LINE = re.compile(r"sbatch (?:--\S+ )*(.*?/)?scripts/(build|serve|companion)\.sbatch")


@dataclass(frozen=True)
class UserRun:
    """A run of any user."""

    user: str
    run_id: str
    name: str
    """The job's."""
    folder: str
    state: RunState
    """By the states of its jobs: whether its server is ready, only the owner can see."""
    gpus: int
    """That its largest job has asked for."""
    submitted_at: float
    """Seconds since the epoch."""
    gpu_hours: float
    """Of its jobs so far."""
    job_ids: tuple[str, ...]


def runs_of_all_users(slurm: Slurm, since_s: float, now: float) -> list[UserRun]:
    """Return the runs that were in the queue or had jobs in the last so many seconds, the newest first.

    Raises SubmissionError if accounting does not answer, or shows a user nobody else's jobs.
    """
    runs: dict[tuple[str, str], list[JobInfo]] = {}
    for job in slurm.jobs_of_all_users(since_s):
        match, origin = _SUBMIT_LINE.fullmatch(job.origin.submit_line), job.origin
        if match is not None and origin.name.endswith(f"-{match[2]}"):
            folder = os.path.normpath(Path(origin.folder, match[1] or "."))
            runs.setdefault((origin.user, folder), []).append(job)
    found = [_run(user, folder, jobs, now) for (user, folder), jobs in runs.items()]
    return sorted(found, key=lambda run: -run.submitted_at)


def _run(user: str, folder: str, jobs: list[JobInfo], now: float) -> UserRun:
    # A job that has not started has run for less than nothing.
    spans = [(job.gpus or 0, job.times.started_at or math.inf, job.times.ended_at or now) for job in jobs]
    return UserRun(
        user,
        Path(folder).name,
        jobs[0].origin.name.rpartition("-")[0],
        folder,
        _state(jobs),
        max(gpus for gpus, _, _ in spans),
        min(job.times.submitted_at or now for job in jobs),
        sum(gpus * max(0.0, end - begin) for gpus, begin, end in spans) / 3600,
        tuple(job.job_id for job in jobs),
    )


def _state(jobs: list[JobInfo]) -> RunState:
    names = {job.state.name for job in jobs}
    if names & {"RUNNING", "COMPLETING"}:
        return RunState.RUNNING
    if not all(job.state.final for job in jobs):
        return RunState.PENDING
    if any(not job.state.ok and job.state.name != "CANCELLED" for job in jobs):
        return RunState.FAILED
    return RunState.CANCELLED if "CANCELLED" in names else RunState.COMPLETED
