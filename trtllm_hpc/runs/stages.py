"""The status of each stage of a run, from what Slurm reports and from the events of its script."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.logs.state import last_mark
from trtllm_hpc.paths import RunPaths, read_plan
from trtllm_hpc.runs.accounting import planned_gpus, with_own_times
from trtllm_hpc.runtime.records import Event, read_events
from trtllm_hpc.runtime.renewal import Renewal
from trtllm_hpc.runtime.stage import SUBMISSION_TIMEOUT_S
from trtllm_hpc.scheduler.job_info import JobInfo, JobTimes
from trtllm_hpc.scheduler.job_origin import RunJob
from trtllm_hpc.scheduler.local import is_same_process
from trtllm_hpc.scheduler.reasons import explain_reason
from trtllm_hpc.scheduler.slurm import Slurm
from trtllm_hpc.scheduler.states import (
    INTERRUPTED,
    LOST,
    NO_OUTPUT_FILE,
    NOT_SUBMITTED,
    STATES,
    UNANSWERED,
    JobState,
)
from trtllm_hpc.scheduler.submission_record import SubmissionRecord, read_submission
from trtllm_hpc.scheduler.waiting import Waiting

if TYPE_CHECKING:
    from trtllm_hpc.scheduler.executor import JobWatcher

_SIGNALS = {number.value: number.name for number in signal.Signals}

_NO_EVENT = Event(0.0, "", "")
_NEXT = "next"
"""Beside the names of the stages: the job that waits to serve (``serve.renew``)."""


@dataclass(frozen=True)
class StageStatus:
    """One stage."""

    stage: str
    """``build``, ``serve`` or ``companion``."""
    state: str
    """Slurm's name of the state; the local profile uses the same names."""
    final: bool
    """Whether the stage stays in this state."""
    ok: bool
    """Whether it has completed."""
    sentence: str
    """What the state means, and why."""
    job_id: str | None = None
    """Slurm's; with the profile ``local`` the process id."""
    nodes: str = ""
    """As Slurm writes them, e.g. ``n[1-2]``."""
    exit_code: int | None = None
    """``None`` before its end."""
    exit_signal: int | None = None
    """The signal that Slurm gives beside the exit code, also for what is none: 53, 125."""
    requeued: bool = False
    """Whether Slurm has ended its job once and put it back into the queue."""
    next_job_id: str | None = None
    """The job that waits to serve after this one (``serve.renew``)."""
    times: JobTimes = field(default_factory=JobTimes)
    gpus: int | None = None
    """GPUs that it was given, or else asks for."""
    waited_s: float | None = None
    """From its submission to its start; ``None`` before that."""
    waiting: Waiting | None = None
    """Where it stands in the queue; ``None`` unless it is pending in Slurm."""
    gpu_hours: float | None = None
    """Its GPUs times the hours from its start to its end, or until now."""
    energy_j: float | None = None
    """In joules; ``None`` where Slurm does not measure it, and before its end."""


def watcher_of(paths: RunPaths) -> JobWatcher:
    """Return a watcher for the cluster that a run was, or would be, submitted to."""
    from trtllm_hpc.scheduler.executor import JobWatcher  # submitit takes 0.1 s to import

    record = read_submission(paths)
    return JobWatcher(Slurm(record.slurm_conf if record else planned(paths, "slurm_conf")))


def stages_of(
    paths: RunPaths,
    record: SubmissionRecord | None,
    watcher: JobWatcher | None = None,
    *,
    mode: str = "force",
    queued: Mapping[Path, str] | None = None,
    places: bool = False,
) -> list[StageStatus]:
    """Return the status of each stage, in the order of their dependencies.

    Args:
        queued: the jobs in the queue by their script, if Slurm has already told them.
        places: as for :func:`run_status`.

    Raises:
        SubmissionError: Slurm does not answer.
    """
    events = read_events(paths)
    jobs = _job_ids(paths, record, events)
    interrupted = _was_interrupted(paths, record, events)
    waiting: dict[str, Waiting] = {}
    if record is not None and record.scheduler == "local":
        stages = [_local_stage(name, record, events) for name in jobs]
    elif record is None and planned(paths, "scheduler") == "local":
        stages = [_stage_run_by_hand(name, events) for name in jobs]
    else:
        watched = watched_jobs(paths, record, queued)
        watcher = watcher or watcher_of(paths)
        known = watcher.job_infos(watched.values(), mode) if watched else {}
        infos = {name: known.get(job) for name, job in watched.items()}
        waiting = watcher.waiting() if places and watched else {}
        stages = [_slurm_stage(it, watched.get(it), infos.get(it), events, interrupted) for it in jobs]
        if (following := Renewal.read(paths.renewal)) is not None:
            stages = [_renewed(it, following, watched.get(_NEXT), infos.get(_NEXT), events) for it in stages]
    gpus = planned_gpus(paths)
    stages = [replace(stage, waiting=waiting.get(stage.job_id or "")) for stage in stages]
    return [_timed(stage, record, events, gpus.get(stage.stage)) for stage in stages]


def watched_jobs(
    paths: RunPaths, record: SubmissionRecord | None, queued: Mapping[Path, str] | None
) -> dict[str, RunJob]:
    """Return the jobs that decide a run's status by stage, and under ``_NEXT`` the job that waits to serve.

    Args:
        queued: as for :func:`stages_of`.
    """
    jobs = _job_ids(paths, record, read_events(paths))
    if record is None:
        jobs |= _queued_by_hand(paths, jobs, queued)
    following = Renewal.read(paths.renewal)
    if following is None:
        return RunJob.of(paths, jobs)
    if int(following.job_id) > int(jobs.get("serve") or 0):
        jobs["serve"] = following.job_id  # it has begun, and not said so yet
    waiting = RunJob.of(paths, {"serve": following.next_job_id})
    return RunJob.of(paths, jobs) | ({_NEXT: waiting["serve"]} if waiting else {})


def unanswered_stages(paths: RunPaths, record: SubmissionRecord | None) -> list[StageStatus]:
    """Return what is known of the stages of a submitted run before Slurm has answered for the first time."""
    jobs = _job_ids(paths, record, read_events(paths))
    return [_in_state(name, UNANSWERED, job) for name, job in jobs.items()]


def _was_interrupted(paths: RunPaths, record: SubmissionRecord | None, events: list[Event]) -> bool:
    """Return whether the submission stopped half-way: an event says so, or its jobs no longer wait for it."""
    if record is None or record.complete:
        return False
    if any(event.name == "submission_interrupted" for event in events):
        return True
    try:
        return time.time() - paths.jobs.stat().st_mtime > SUBMISSION_TIMEOUT_S
    except FileNotFoundError:
        return False


def _queued_by_hand(
    paths: RunPaths, jobs: dict[str, str | None], queued: Mapping[Path, str] | None
) -> dict[str, str]:
    """Return jobs submitted by hand that have not begun, by stage: Slurm knows which script a job runs."""
    scripts = {paths.sbatch(stage): stage for stage, job in jobs.items() if job is None}
    try:
        if queued is None:
            queued = Slurm(planned(paths, "slurm_conf")).find_scripts(scripts)
    except SubmissionError as error:
        error.message = (
            f"Run {paths.run_id} is rendered. Whether its scripts were then submitted by hand is unknown: "
            + error.message
        )
        raise
    return {scripts[script]: job for script, job in queued.items() if script in scripts}


def planned(paths: RunPaths, key: str) -> str | None:
    """Return a value of the plan, for a run whose scripts were submitted by hand."""
    value: str | None = read_plan(paths).get(key)
    return value


def _job_ids(paths: RunPaths, record: SubmissionRecord | None, events: list[Event]) -> dict[str, str | None]:
    """Return the job id of each stage, from the record or, for scripts run by hand, from their events."""
    jobs: dict[str, str | None] = {stage["name"]: None for stage in read_plan(paths).get("stages", [])}
    for event in events:
        if event.name == "stage_begin" and event.stage in jobs:
            jobs[event.stage] = str(event.data.get("job_id") or "") or None
    for name, job in (record.stages if record else {}).items():
        # Of a stage that was run again by hand the newest id counts.
        jobs[name] = jobs.get(name) or job.job_id
    return jobs


def _slurm_stage(
    name: str, job: RunJob | None, info: JobInfo | None, events: list[Event], interrupted: bool
) -> StageStatus:
    if job is None:
        return _in_state(name, INTERRUPTED if interrupted else NOT_SUBMITTED)
    job_id = job.job_id
    last = last_mark(events, name) or _NO_EVENT
    if info is None or info.state.name == LOST.name:
        # Slurm does not know it: its own last event decides.
        state = LOST if info is None else info.state
        return _ended(name, job_id, last) if last.name == "stage_end" else _in_state(name, state, job_id)
    code = info.exit_code
    if info.state.final and last.name == "stage_end" and last.data.get("job_id") == job_id:
        code = int(last.data["exit_code"])  # sacct shows 137 as 9
    note = f": {explain_reason(info.reason, job_id, info.unavailable)}" if info.reason else ""
    if info.exit_signal and not info.state.ok:
        note += _signal_note(info)
    elif info.state.name == "FAILED":
        # srun exits with the number of the signal that killed its task, which then recorded no end.
        begun = last.name == "stage_begin" and last.data.get("job_id") == job_id
        killer = _SIGNALS.get(code or 0) if begun else None
        note += f" (its script was killed by signal {code}, {killer})" if killer else _exit_code_note(code)
    requeued = _was_requeued(name, job_id, info.state, events)
    if requeued:
        note += "; Slurm has ended it once and put it back into the queue"
    stage = _in_state(name, info.state, job_id, note, info.nodes, code)
    return replace(
        stage,
        exit_signal=info.exit_signal,
        requeued=requeued,
        times=info.times,
        gpus=info.gpus,
        energy_j=info.energy_j,
    )


def _was_requeued(name: str, job_id: str, state: JobState, events: list[Event]) -> bool:
    """Return whether a job waits though its script has begun before, or has begun twice."""
    begun = [one for one in events if one.stage == name and one.name == "stage_begin"]
    times = sum(one.data.get("job_id") == job_id for one in begun)
    return times > 1 or (times == 1 and state.name in ("PENDING", "REQUEUED", "REQUEUE_HOLD"))


def _timed(
    stage: StageStatus, record: SubmissionRecord | None, events: list[Event], planned: int | None
) -> StageStatus:
    """Return a stage with its times and what they amount to; ``planned``: the GPUs it asks for."""
    times = with_own_times(stage.times, stage.stage, stage.job_id, record, events, final=stage.final)
    gpus = planned if stage.gpus is None else stage.gpus
    begun, ended = times.started_at, times.ended_at if stage.final else time.time()
    waited_s = None if begun is None or times.submitted_at is None else begun - times.submitted_at
    hours = None if begun is None or ended is None else (ended - begun) / 3600
    gpu_hours = None if hours is None or gpus is None else hours * gpus
    return replace(stage, times=times, gpus=gpus, waited_s=waited_s, gpu_hours=gpu_hours)


def _renewed(
    stage: StageStatus, renewal: Renewal, following: RunJob | None, info: JobInfo | None, events: list[Event]
) -> StageStatus:
    """Return the status of a serve stage that another job follows: that job's, once this one has ended."""
    if stage.stage != "serve" or following is None or stage.job_id != renewal.job_id:
        return stage
    if stage.final and info is not None and not info.state.final:
        stage = _slurm_stage("serve", following, info, events, interrupted=False)
        return replace(stage, sentence=f"{stage.sentence}; job {renewal.job_id} before it has ended")
    if stage.final:
        return stage
    sentence = f"{stage.sentence}; job {following.job_id} waits to follow it"
    return replace(stage, sentence=sentence, next_job_id=following.job_id)


def _signal_note(info: JobInfo) -> str:
    """Return what Slurm's second number says; it is not always a signal's."""
    if info.exit_signal in _SIGNALS:
        return f" (its batch script was killed by signal {info.exit_signal})"
    if info.exit_signal == NO_OUTPUT_FILE:
        return ": Slurm could not open its output file, or enter its folder, on the node"
    # 125 comes with OUT_OF_MEMORY, whose own sentence says it.
    known = info.state.name == "OUT_OF_MEMORY"
    return "" if known else f" (Slurm's exit code is {info.exit_code}:{info.exit_signal})"


def _exit_code_note(code: int | None) -> str:
    if not code:
        return ""
    if code > 128 and (name := _SIGNALS.get(code - 128)):
        return f" (exit code {code}, as after {name})"
    return f" (exit code {code})"


def _ended(name: str, job_id: str | None, end: Event) -> StageStatus:
    code = int(end.data.get("exit_code", 1))
    state = STATES["COMPLETED" if code == 0 else "FAILED"]
    return _in_state(name, state, job_id, _exit_code_note(code), exit_code=code)


def _stage_run_by_hand(name: str, events: list[Event]) -> StageStatus:
    """Return the status of a stage of the local profile that the user runs with bash."""
    last = last_mark(events, name) or _NO_EVENT
    if last is _NO_EVENT:
        return _in_state(name, NOT_SUBMITTED)
    job_id = str(last.data.get("job_id", ""))
    if last.name == "stage_end":
        return _ended(name, job_id, last)
    return _in_state(name, STATES["RUNNING"], job_id)


def _local_stage(name: str, record: SubmissionRecord, events: list[Event]) -> StageStatus:
    job = record.stages.get(name)
    if job is None:
        return _in_state(name, STATES["PENDING"] if record.complete else INTERRUPTED)
    last = last_mark(events, name) or _NO_EVENT
    begun = last.name == "stage_begin"
    note = ""
    if any(event.stage == name and event.name == "stage_cancelled" for event in events):
        state = "CANCELLED"  # its script may have recorded its end after that
    elif last.name == "stage_end":
        return _ended(name, job.job_id, last)
    elif begun and is_same_process(int(last.data.get("group", 0)), last.data.get("group_started")):
        state = "RUNNING"  # the script, with or without its controller
    elif is_same_process(int(job.job_id), job.process_started):
        state = "RUNNING" if begun else "PENDING"
    elif begun:
        state, note = "FAILED", " (its script was killed)"
    else:
        state = "CANCELLED"  # its controller ended first: a stage that it depends on failed
    return _in_state(name, STATES[state], job.job_id, note)


def _in_state(
    name: str,
    state: JobState,
    job_id: str | None = None,
    note: str = "",
    nodes: str = "",
    exit_code: int | None = None,
) -> StageStatus:
    sentence = state.sentence + note
    return StageStatus(name, state.name, state.final, state.ok, sentence, job_id, nodes, exit_code)


def joined(state: str, detail: str) -> str:
    """Return the state of a stage with its details."""
    return f"{state}, {detail}" if detail else state
