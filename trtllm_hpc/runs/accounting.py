"""When a run's jobs were submitted, started and ended, and their GPUs, where Slurm does not tell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from trtllm_hpc.paths import RunPaths, read_plan
from trtllm_hpc.runtime.records import Event
from trtllm_hpc.scheduler.slurm import JobTimes
from trtllm_hpc.scheduler.submission_record import SubmissionRecord


def with_own_times(
    times: JobTimes,
    stage: str,
    job_id: str | None,
    record: SubmissionRecord | None,
    events: Iterable[Event],
    *,
    final: bool,
) -> JobTimes:
    """Return a job's times, filled up from the submission record and the stage's events.

    Args:
        times: what Slurm has told.
        final: whether the job has ended.
    """
    job = record.stages.get(stage) if record else None
    # The scripts of the local profile have ids of their own, beside that of the process.
    local = record is not None and record.scheduler == "local"
    its = (event for event in events if event.stage == stage and (local or _is_of(event, job_id)))
    marks = {event.name: event.time for event in its}
    if times.submitted_at is None and job is not None and job.job_id == job_id:
        times = replace(times, submitted_at=job.submitted_at)
    if times.started_at is None:
        times = replace(times, started_at=marks.get("stage_begin"))
    if times.ended_at is None and final:
        times = replace(times, ended_at=marks.get("stage_end"))
    return times


def _is_of(event: Event, job_id: str | None) -> bool:
    """Return whether an event is of this job, and not of another one that ran the same stage."""
    return event.data.get("job_id", job_id) in (job_id, "")


def planned_gpus(paths: RunPaths) -> dict[str, int]:
    """Return the GPUs that each stage asks for, on all of its nodes."""
    found = {}
    for stage in read_plan(paths).get("stages", []):
        options = {one["option"]: one["value"] for one in stage.get("directives", [])}
        found[stage["name"]] = int(stage.get("gpus", 0)) * int(options.get("--nodes") or 1)
    return found
