"""The runs of all users of a cluster, by Slurm's accounting: their run folders are closed to others."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

from trtllm_hpc.runs.listing import ListedRun
from trtllm_hpc.runs.status import RunState
from trtllm_hpc.scheduler.job_info import JobInfo
from trtllm_hpc.scheduler.slurm import Slurm

_SUBMIT_LINE = re.compile(r"sbatch (?:--\S+ )*(.*?/)?scripts/(build|serve|companion)\.sbatch")


def runs_of_all_users(slurm: Slurm, since_s: float, now: float) -> list[ListedRun]:
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
    return sorted(found, key=lambda run: -run.created_at)


def _run(user: str, folder: str, jobs: list[JobInfo], now: float) -> ListedRun:
    # A job that has not started has run for less than nothing.
    spans = [(job.gpus or 0, job.times.started_at or math.inf, job.times.ended_at or now) for job in jobs]
    return ListedRun(
        run_id=Path(folder).name,
        folder=folder,
        name=jobs[0].origin.name.rpartition("-")[0],
        model=None,
        state=_state(jobs),
        endpoint=None,
        created_at=min(job.times.submitted_at or now for job in jobs),
        gpu_hours=sum(gpus * max(0.0, end - begin) for gpus, begin, end in spans) / 3600,
        settled=all(job.state.final for job in jobs),
        live=any(not job.state.final for job in jobs),
        user=user,
        gpus=max(gpus for gpus, _, _ in spans),
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
