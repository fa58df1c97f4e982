"""The status of each stage of a run, from what Slurm reports and from the events of its script."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.logs.files import last_mark
from trtllm_hpc.logs.reading import last_lines, stat_of
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import Event, of_last_job
from trtllm_hpc.runtime.stage import SUBMISSION_TIMEOUT_S
from trtllm_hpc.runtime.stop import CANCEL
from trtllm_hpc.scheduler.job_info import JobInfo, JobTimes, RunJob
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
from trtllm_hpc.scheduler.watcher import JobWatcher, Waiting

if TYPE_CHECKING:
    from trtllm_hpc.logs.diagnose import RankFailure

_SIGNALS = {number.value: number.name for number in signal.Signals}

_TASK_END = re.compile(r"^srun: error: \S+: tasks? [\d,-]+: (.+?)(?: \(core dumped\))?$", re.MULTILINE)
_NO_EVENT = Event(0.0, "", "")
_ALIVE_S = 45.0
"""A heartbeat that is older says nothing about whether the job runs."""
SWEEP_JOB_NAME = "trtllm-hpc-sweep"
"""Of a job that runs the variants of a sweep."""
_OF_SIGNALS = (137, 143)
"""Exit codes of a script that the end of its job has ended."""
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
    """Why it waits in the queue; ``None`` unless it is pending in Slurm."""
    gpu_hours: float | None = None
    """Its GPUs times the hours from its start to its end, or until now."""
    energy_j: float | None = None
    """In joules; ``None`` where Slurm does not measure it, and before its end."""


@dataclass(frozen=True)
class StageFailure:
    """The failed stage that decides a run's state, and what the run's own files show of it."""

    status: StageStatus
    stage: str
    """The stage whose logs explain it: ``companion`` if that failed within the job of the server."""
    first: RankFailure | None
    """The rank that died first, if a rank is the cause."""
    reported: str | None
    """The reason that the stage's job, or its submission, has recorded."""
    next: str | None = None
    """What to do about it, if that is recorded too."""


def watcher_of(run: RunSnapshot) -> JobWatcher:
    """Return a watcher for the cluster that a run was, or would be, submitted to."""
    return JobWatcher(Slurm(run.slurm_conf))


def stages_of(
    run: RunSnapshot,
    watcher: JobWatcher | None = None,
    *,
    mode: str = "force",
    queued: Mapping[Path, str] | None = None,
    limits: bool = False,
) -> list[StageStatus]:
    """Return the status of each stage, in the order of their dependencies.

    ``limits`` as for :func:`run_status`; ``queued`` are the jobs in the queue by their script, if Slurm was
    already asked for them. Raises SubmissionError if Slurm does not answer.
    """
    if run.is_local:
        return [_timed(run, _local_stage(run, name)) for name in job_ids(run)]
    watched = watched_jobs(run, queued)
    watcher = watcher or watcher_of(run)
    answers = watcher.job_infos(watched.values(), mode)
    waiting = watcher.waiting() if limits else {}
    infos = {name: answers.get(job) for name, job in watched.items()}
    stages = [_slurm_stage(run, name, watched.get(name), infos.get(name)) for name in job_ids(run)]
    stages = [_renewed(run, stage, watched.get(_NEXT), infos.get(_NEXT)) for stage in stages]
    return [_timed(run, replace(stage, waiting=waiting.get(stage.job_id or ""))) for stage in stages]


def watched_jobs(run: RunSnapshot, queued: Mapping[Path, str] | None) -> dict[str, RunJob]:
    """Return the jobs that decide a run's status by stage, and under ``_NEXT`` the job that waits to serve.

    ``queued`` as for :func:`stages_of`. Jobs that have not begun and are in no record, because they were
    submitted by hand or ``submit`` was killed, are looked for in the queue.
    """
    jobs, submission = job_ids(run), run.submission
    if submission is not None and submission.within is not None:
        job = next(iter(submission.stages.values()))
        return dict.fromkeys(jobs, sweep_job(submission.within, job.job_id))
    if submission is None or not submission.complete:
        try:
            jobs |= _queued(run, [stage for stage, job_id in jobs.items() if job_id is None], queued)
        except SubmissionError as error:
            if submission is None:
                error.message = (
                    f"Run {run.paths.run_id} is rendered. "
                    f"Whether its scripts were then submitted by hand is unknown: {error.message}"
                )
            raise
    if run.renewal is None:
        return RunJob.of(run.paths, run.plan, jobs)
    if int(run.renewal.job_id) > int(jobs.get("serve") or 0):
        jobs["serve"] = run.renewal.job_id  # it has begun, and its script has not recorded that yet
    found = RunJob.of(run.paths, run.plan, jobs)
    following = RunJob.of(run.paths, run.plan, {"serve": run.renewal.next_job_id}).get("serve")
    return found if following is None else found | {_NEXT: following}


def sweep_job(folder: str, job_id: str) -> RunJob:
    """Return the job that runs the variants of a sweep."""
    return replace(RunJob.of(RunPaths(folder), None, {"sweep": job_id})["sweep"], name=SWEEP_JOB_NAME)


def unanswered_stages(run: RunSnapshot) -> list[StageStatus]:
    """Return what is known of the stages of a submitted run before Slurm has answered for the first time."""
    jobs = watched_jobs(run, {})
    return [_slurm_stage(run, name, jobs.get(name), None, answered=False) for name in job_ids(run)]


def silent_for_s(run: RunSnapshot, stage: str) -> float:
    """Return the seconds since the last heartbeat of the companion or of the ranks; -1: none is alive."""
    alive = [it for step in run.serve_steps for it in run.ranks(step) if it.ended_at is None]
    beats = [run.paths.rank_heartbeat(it.step, it.rank) for it in alive]
    stats = map(stat_of, [run.paths.heartbeat] if stage == "companion" else beats)
    return min((abs(time.time() - stat.st_mtime) for stat in stats if stat is not None), default=-1.0)


def queued_jobs(run: RunSnapshot) -> dict[str, RunJob]:
    """Return the jobs in Slurm's queue that run a script of this run, by stage, recorded or not.

    A job is in no record if ``submit`` was killed, or the job before it (``serve.renew``) was cancelled, just
    when Slurm took it. Raises SubmissionError if Slurm does not answer.
    """
    return RunJob.of(run.paths, run.plan, {} if run.is_local else _queued(run, run.stages))


def _queued(
    run: RunSnapshot, stages: Iterable[str], queued: Mapping[Path, str] | None = None
) -> dict[str, str]:
    """Return the newest queued job of each of these stages; ``queued`` as for :func:`stages_of`."""
    scripts = {run.paths.sbatch(stage): stage for stage in stages}
    if queued is None:
        token = run.submission.token if run.submission else None
        queued = Slurm(run.slurm_conf).find_scripts(dict.fromkeys(scripts, token))
    return {scripts[script]: job for script, job in queued.items() if script in scripts}


def job_ids(run: RunSnapshot) -> dict[str, str | None]:
    """Return the job id of each stage: of its last script that has begun, else from the record."""
    jobs: dict[str, str | None] = dict.fromkeys(run.stages)
    for event in run.all_events:
        if event.name == "stage_begin" and event.stage in jobs:
            jobs[event.stage] = str(event.data.get("job_id") or "") or None
    for name, job in (run.submission.stages if run.submission else {}).items():
        # Of a stage that was run again by hand the newest id counts.
        jobs[name] = jobs.get(name) or job.job_id
    return jobs


# The status of one stage -----------------------------------------------------------------------


def _was_interrupted(run: RunSnapshot) -> bool:
    """Return whether the submission stopped half-way: an event says so, or its jobs no longer wait for it."""
    if run.submission is None or run.submission.complete:
        return False
    recorded = any(event.name == "submission_interrupted" for event in run.all_events)
    changed = stat_of(run.paths.jobs)
    return recorded or (changed is not None and time.time() - changed.st_mtime > SUBMISSION_TIMEOUT_S)


def _without_job(run: RunSnapshot, name: str, otherwise: JobState) -> StageStatus:
    """Return the status of a stage that has no job: cancelled, if ``cancel`` has stopped its submission."""
    request, record = run.stop_request, run.submission
    stopped = record and not record.complete and request is not None and request.by == CANCEL
    return _in_state(name, STATES["CANCELLED"] if stopped else otherwise)


def _slurm_stage(
    run: RunSnapshot, name: str, job: RunJob | None, info: JobInfo | None, *, answered: bool = True
) -> StageStatus:
    if job is None:
        return _without_job(run, name, INTERRUPTED if _was_interrupted(run) else NOT_SUBMITTED)
    job_id, submission = job.job_id, run.submission
    last = last_mark(run, name) or _NO_EVENT
    within_sweep = submission is not None and submission.within is not None
    if within_sweep and (stage := _stage_in_sweep(run, name, job_id, last, info)) is not None:
        return stage
    if info is None or info.state.name == LOST.name:
        # Slurm does not know it: its own last event and its heartbeats decide.
        if last.name == "stage_end":
            return _ended(name, job_id, last)
        if info is None and 0 <= silent_for_s(run, name) < _ALIVE_S:
            note = f" by its own files; Slurm does not {'know its job' if answered else 'answer now'}"
            return _in_state(name, STATES["RUNNING"], job_id, note)
        unknown = LOST if answered else UNANSWERED
        return _in_state(name, unknown if info is None else info.state, job_id)
    state, code = info.state, info.exit_code
    of_this_job = last.data.get("job_id") == job_id
    if state.final and last.name == "stage_end" and of_this_job:
        code = int(last.data["exit_code"])  # sacct shows 137 as 9
    note = _pending_note(info)
    if state.name == "NODE_FAIL":
        log = "\n".join(last_lines(run.paths.batch_log(name), 50))
        note += "".join(f": {node}" for node in re.findall(r"error: Node failure on ([\w.-]+)", log)[-1:])
    if info.exit_signal and not state.ok:
        note += _signal_note(info)
    elif state.name == "FAILED":
        killer = _killer(run, name) if last.name == "stage_begin" and of_this_job else None
        note += f" (its script was killed by {killer})" if killer else _exit_code_note(code)
    its_events = [event.name for event in run.events(name) if event.data.get("job_id") == job_id]
    if state.name in ("COMPLETED", "FAILED") and not info.exit_signal and run.renewal is None:
        log_file = stat_of(run.paths.batch_log(name))
        if not its_events and log_file is not None and not log_file.st_size:
            state = STATES["FAILED"]
            note += ": its script never began, as if a file that bash reads first (BASH_ENV) had ended it"
    is_recorded = submission is None or name in submission.stages
    if not state.final and not is_recorded and _was_interrupted(run):
        note += "; its submission did not come to its end, so it does nothing once it starts"
    # It waits though its script has begun before, or that has begun twice.
    begins = its_events.count("stage_begin")
    requeued = begins > 1 or (begins == 1 and state.name in ("PENDING", "REQUEUED", "REQUEUE_HOLD"))
    if requeued:
        note += "; Slurm has ended it once and put it back into the queue"
    stage = _in_state(name, state, job_id, note, info.nodes, code)
    if within_sweep:
        return stage  # times and GPUs are the whole sweep's
    return replace(
        stage,
        exit_signal=info.exit_signal,
        requeued=requeued,
        times=info.times,
        gpus=info.gpus,
        energy_j=info.energy_j,
    )


def _stage_in_sweep(
    run: RunSnapshot, name: str, job_id: str, last: Event, info: JobInfo | None
) -> StageStatus | None:
    """Return the status of a stage that its sweep's job does not run now; ``None`` if it may run."""
    cancelled = [event for event in run.events(name) if event.name == "stage_cancelled"]
    if cancelled:  # its script may have recorded its end after that
        why = cancelled[-1].data.get("reason")
        return _in_state(name, STATES["CANCELLED"], job_id, f": {why}" if why else "")
    was_killed = info is not None and info.state.final and not info.state.ok
    if last.name == "stage_end" and not (was_killed and last.data.get("exit_code") in _OF_SIGNALS):
        return _ended(name, job_id, last)
    if last.name.startswith("stage_") or info is None:
        return None
    if info.state.final:
        note = f": the sweep's job {info.state.sentence} before its turn"
        return _in_state(name, STATES["CANCELLED"], job_id, note)
    turn = f": it waits for its turn in the sweep's job {job_id}"
    note = _pending_note(info) if info.state.name == "PENDING" else turn
    return _in_state(name, STATES["PENDING"], job_id, note)


def _pending_note(info: JobInfo) -> str:
    return f": {explain_reason(info.reason, info.job_id, info.unavailable)}" if info.reason else ""


def _timed(run: RunSnapshot, stage: StageStatus) -> StageStatus:
    """Return a stage with its GPUs, and its times: Slurm's, filled up from the record and its events."""
    name, job_id, times = stage.stage, stage.job_id, stage.times
    job = run.submission.stages.get(name) if run.submission else None
    # The scripts of the local profile have ids of their own, beside that of the process.
    every_job = run.submission is not None and run.is_local
    marks = {
        event.name: event.time
        for event in run.events(name)
        if every_job or event.data.get("job_id", job_id) in (job_id, "")
    }
    submitted_at, begun, ended = times.submitted_at, times.started_at, times.ended_at
    if submitted_at is None and job is not None and job.job_id == job_id:
        submitted_at = job.submitted_at
    begun = marks.get("stage_begin") if begun is None else begun
    ended = marks.get("stage_end") if ended is None and stage.final else ended
    until = ended if stage.final else time.time()
    gpus = run.planned_gpus.get(name) if stage.gpus is None else stage.gpus
    # The clocks of controller, nodes and this machine may differ.
    hours = None if begun is None or until is None else max(0.0, until - begun) / 3600
    return replace(
        stage,
        times=replace(times, submitted_at=submitted_at, started_at=begun, ended_at=ended),
        gpus=gpus,
        waited_s=None if begun is None or submitted_at is None else max(0.0, begun - submitted_at),
        gpu_hours=None if hours is None or gpus is None else hours * gpus,
    )


def _renewed(
    run: RunSnapshot, stage: StageStatus, following: RunJob | None, info: JobInfo | None
) -> StageStatus:
    """Return the status of a serve stage that another job follows: that job's, once this one has ended."""
    renewal = run.renewal
    if stage.stage != "serve" or following is None or renewal is None or stage.job_id != renewal.job_id:
        return stage
    if stage.final and info is not None and not info.state.final:
        stage = _slurm_stage(run, "serve", following, info)
        return replace(stage, sentence=f"{stage.sentence}; job {renewal.job_id} before it has ended")
    if stage.final:
        return stage
    drains = any(event.name == "draining" for event in of_last_job(run.events("serve")))
    near = "; its time limit is near: open requests may end, new ones are refused" if drains else ""
    sentence = f"{stage.sentence}{near}; job {following.job_id} waits to follow it"
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


def _killer(run: RunSnapshot, stage: str) -> str | None:
    """Return the signal that killed the script of a stage without a recorded end, as srun has logged it.

    The exit code does not show it: for a killed task srun exits with the number of the signal.
    """
    logged = _TASK_END.findall("\n".join(last_lines(run.paths.batch_log(stage), 50)))
    found = (it for it in signal.Signals if signal.strsignal(it) in logged[-1:])
    return next((f"signal {it.value}, {it.name}" for it in found), None)


def _exit_code_note(code: int | None) -> str:
    """Return an exit code other than 0, and the signal that it stands for if it does."""
    name = _SIGNALS.get((code or 0) - 128)
    after = f", as after {name}" if name else ""
    return f" (exit code {code}{after})" if code else ""


def _ended(name: str, job_id: str | None, end: Event) -> StageStatus:
    code = int(end.data.get("exit_code", 1))
    state = STATES["COMPLETED" if code == 0 else "FAILED"]
    return _in_state(name, state, job_id, _exit_code_note(code), exit_code=code)


def _local_stage(run: RunSnapshot, name: str) -> StageStatus:
    """Return the status of a stage of the local profile, which ``submit`` or the user with bash has begun."""
    record = run.submission
    job = None if record is None else record.stages.get(name)
    last = last_mark(run, name) or _NO_EVENT
    begun = last.name == "stage_begin"
    if record is None and last is _NO_EVENT:
        return _in_state(name, NOT_SUBMITTED)
    if record is not None and job is None:
        return _without_job(run, name, STATES["PENDING"] if record.complete else INTERRUPTED)
    job_id = str(last.data.get("job_id", "")) if job is None else job.job_id
    if job is not None and any(event.name == "stage_cancelled" for event in run.events(name)):
        return _in_state(name, STATES["CANCELLED"], job_id)  # its script may have recorded its end after that
    if last.name == "stage_end":
        return _ended(name, job_id, last)
    note = ""
    if job is None:
        state = "RUNNING"  # without its process id nothing else is known
    elif begun and is_same_process(int(last.data.get("group", 0)), last.data.get("group_started")):
        state = "RUNNING"  # the script, with or without its controller
    elif is_same_process(int(job.job_id), job.process_started):
        state = "RUNNING" if begun else "PENDING"
    elif begun:
        state, note = "FAILED", " (its script was killed)"
    else:
        state = "CANCELLED"  # its controller ended first: a stage that it depends on failed
    return _in_state(name, STATES[state], job_id, note)


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
