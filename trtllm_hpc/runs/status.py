"""The status of a run: Slurm shows its jobs; the files that the jobs write show its stages and ranks."""

from __future__ import annotations

import enum
import math
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtllm_hpc.config.hub import record_of
from trtllm_hpc.errors import ExitCode, SubmissionError
from trtllm_hpc.evaluation.scores import EvaluationSummary, read_evaluation
from trtllm_hpc.logs.causes.explain import Finding
from trtllm_hpc.logs.causes.table import Degree
from trtllm_hpc.logs.diagnose import first_failure
from trtllm_hpc.logs.files import last_mark, list_logs
from trtllm_hpc.logs.reading import last_lines, stat_of
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import RunPaths, call_name, remove_abandoned
from trtllm_hpc.runs.guests import ProxyClient, clients_of
from trtllm_hpc.runtime.bad_nodes import BadNode, bad_nodes
from trtllm_hpc.runtime.checks import disk_space
from trtllm_hpc.runtime.heartbeat import BEAT_S, TROUBLE
from trtllm_hpc.runtime.records import IDLE, Endpoint, Event, known_fields, of_last_job
from trtllm_hpc.runtime.renewal import FailedJob
from trtllm_hpc.runtime.stage import SUBMISSION_TIMEOUT_S
from trtllm_hpc.runtime.stop import CANCEL
from trtllm_hpc.scheduler.job_info import JobInfo, JobTimes, RunJob
from trtllm_hpc.scheduler.local import is_same_process
from trtllm_hpc.scheduler.slurm import JobWatcher, Slurm
from trtllm_hpc.scheduler.states import (
    INTERRUPTED,
    LOST,
    NOT_SUBMITTED,
    STATES,
    UNANSWERED,
    JobState,
    explain_reason,
)

if TYPE_CHECKING:
    from trtllm_hpc.runs.causes import StageFailure

_CAUSED_BY_A_RANK = ("FAILED", "OUT_OF_MEMORY", "RUNNING", "COMPLETING", UNANSWERED.name)
"""States whose cause is the rank that died first; other states (a time limit...) have another cause."""
_PATIENCE_S = 10.0
"""Seconds to wait for an answer of Slurm."""
_ALIVE_S = 45.0
"""Largest age in seconds of a heartbeat that proves that the job runs."""
_SIGNALS = {number.value: number.name for number in signal.Signals}
_TASK_END = re.compile(r"^srun: error: \S+: tasks? [\d,-]+: (.+?)(?: \(core dumped\))?$", re.MULTILINE)
_NO_EVENT = Event(0.0, "", "")
_OF_SIGNALS = (137, 143)
"""Exit codes of a script that was killed when its job ended."""
_NEXT = "next"
"""Key, beside the names of stages, of the job that waits to serve (``serve.renew``)."""
SWEEP_JOB_NAME = "trtllm-hpc-sweep"
"""Name of a Slurm job that runs the variants of a sweep."""


class RunState(str, enum.Enum):
    """State of a run as a whole."""

    RENDERED = "rendered"
    """The run folder is written, but not submitted."""
    PENDING = "pending"
    RUNNING = "running"
    SERVING = "serving"
    """The endpoint is published."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def final(self) -> bool:
        """Whether the run stays in this state."""
        return self in (RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED, RunState.LOST)


@dataclass(frozen=True)
class StageStatus:
    """Status of a stage."""

    stage: str
    """Name of the stage: ``download``, ``build``, ``serve`` or ``companion``."""
    state: str
    """Slurm's name of the state; the local profile uses the same names."""
    final: bool
    """Whether the stage stays in this state."""
    ok: bool
    """Whether the stage has completed."""
    sentence: str
    """The state and its reason, in words."""
    job_id: str | None = None
    """Slurm's job ID; with the profile ``local``, a process ID."""
    nodes: str = ""
    """The job's nodes in Slurm's notation, e.g. ``n[1-2]``."""
    exit_code: int | None = None
    """Exit code of the batch script; ``None`` before its end."""
    exit_signal: int | None = None
    """The number that Slurm shows beside the exit code: a signal, or 53, 125."""
    requeued: bool = False
    """Whether Slurm has ended the job once and put it back into the queue."""
    next_job_id: str | None = None
    """ID of the job that waits to serve after this job (``serve.renew``)."""
    times: JobTimes = field(default_factory=JobTimes)
    gpus: int | None = None
    """Number of GPUs that the job has or, before its start, requests."""
    waited_s: float | None = None
    """Seconds from submission to start; ``None`` before the start."""
    gpu_hours: float | None = None
    """Number of GPUs times the hours from the start to the end, or until now."""
    energy_j: float | None = None
    """Energy in joules; ``None`` before the end, or if Slurm does not measure it."""


@dataclass(frozen=True)
class RankStatus:
    """Status of a rank of the server, from the rank's own record."""

    rank: int
    host: str | None
    state: str
    """The state in a few words: ``running``, ``ended 0``, ``stopped by companion``..."""
    instance: int | None = None
    """Number of the instance; ``None`` if there is only one."""


@dataclass(frozen=True)
class InstanceStatus:
    """One server instance, as last recorded by the supervisor."""

    instance: int
    state: str
    """``starting``, ``ready``, ``restarting``, ``failed`` or ``ended``."""
    restarts: int
    """Number of restarts so far."""
    reason: str | None
    """Description of the instance's last end; ``None`` before."""


@dataclass(frozen=True)
class RunUse:
    """GPU-hours, energy and power of a run so far; ``None``: not known."""

    gpu_hours: float | None = None
    """GPU-hours of all jobs, including those before ``resume`` and before the last renewal."""
    energy_j: float | None = None
    """Energy in joules of the stages for which Slurm has measured it."""
    server_mean_w: float | None = None
    """Mean power in watts of all the server's GPUs since its last start, by NVML."""
    server_peak_w: float | None = None
    """Sum of the highest power in watts of each of the server's GPUs."""


@dataclass(frozen=True)
class RunStatus:
    """The state of a run, of its jobs and of its ranks."""

    run_id: str
    folder: str
    """The run folder."""
    state: RunState
    """``rendered``: not submitted. ``serving``: the endpoint is published."""
    sentence: str
    """Sentence about the run's current work, or about its first failure and the cause."""
    stages: tuple[StageStatus, ...]
    ranks: tuple[RankStatus, ...]
    instances: tuple[InstanceStatus, ...]
    """Server instances, as last recorded by the supervisor."""
    endpoint: Endpoint | None
    """Address and access of the server; ``None`` unless the run serves."""
    exit_code: ExitCode
    """Exit code of ``submit --wait`` when this status is final."""
    causes: tuple[Finding, ...] = ()
    """Causes of the failure, the likeliest first."""
    use: RunUse = RunUse()
    """GPU-hours, energy and power so far."""
    bad_nodes: tuple[BadNode, ...] = ()
    """Nodes that ended servers of the run; unless a node is ``kept``, the run's next jobs do not get it."""
    failed_jobs: tuple[FailedJob, ...] = ()
    """Earlier jobs of a renewed server that failed (``serve.renew``)."""
    front_restarts: tuple[str, ...] = ()
    """Reason of each restart of a disaggregated run's front."""
    gateway_failure: str | None = None
    """Why OpenAI's protocol is no longer served, while Triton's protocols still are."""
    clients: tuple[ProxyClient, ...] = ()
    """Clients with their request counts, and the run's guests."""
    evaluation: EvaluationSummary | None = None
    """Scores of the companion's evaluation, once it has finished."""

    @property
    def settled(self) -> bool:
        """Whether every stage has ended, so that the run stays as it is."""
        return is_settled(self.state, self.stages)


def run_status(
    run: RunPaths | RunSnapshot, watcher: JobWatcher | None = None, *, mode: str = "force"
) -> RunStatus:
    """Return the status of a run; query Slurm at most once.

    Once every job has ended, remove temporary files that killed processes left in the run folder. Raises
    SubmissionError if Slurm does not answer.

    Args:
        run: the run's paths, or a snapshot if the caller has one.
        watcher: pass the same watcher to several calls, so that ended jobs, and accounting that a site does
            not have, are not queried again.
        mode: see :meth:`~trtllm_hpc.scheduler.slurm.JobWatcher.job_infos`.
    """
    run = run if isinstance(run, RunSnapshot) else RunSnapshot(run)
    status = status_of(run, stages_of(run, watcher, mode=mode))
    if status.settled:
        remove_abandoned(run.paths.folder)
    return status


def status_or_files(run: RunPaths) -> tuple[RunStatus, SubmissionError | None]:
    """Return the status of a run, and ``None`` or Slurm's error.

    If Slurm does not answer within 10 s, the status comes from the run's own files. Raises SubmissionError if
    Slurm cannot be asked at all.
    """
    snapshot = RunSnapshot(run)
    try:
        return run_status(snapshot, JobWatcher(Slurm(*snapshot.controller, timeout_s=_PATIENCE_S))), None
    except SubmissionError as error:
        if not error.transient or snapshot.submission is None:
            raise
        return unanswered_status(RunSnapshot(run)), error


def unanswered_status(run: RunSnapshot) -> RunStatus:
    """Return the status of a submitted run from its own files, while Slurm does not answer."""
    return status_of(run, _slurm_stages(run, watched_jobs(run, {}), None))


# The jobs of a run ----------------------------------------------------------------------------


def job_ids(run: RunSnapshot) -> dict[str, str | None]:
    """Return the job ID of each stage: from its last script that has begun, else from the submission."""
    begins = (event for event in run.all_events if event.name == "stage_begin")
    begun = {event.stage: event.data.get("job_id") for event in begins}
    jobs = {name: str(begun.get(name) or "") or None for name in run.stages}
    submitted = run.submission.stages if run.submission else {}
    # The events come first, because a stage that was repeated by hand has a newer ID than the record.
    return {**jobs, **{name: jobs.get(name) or job.job_id for name, job in submitted.items()}}


def watched_jobs(run: RunSnapshot, queued: Mapping[Path, str] | None) -> dict[str, RunJob]:
    """Return the jobs that decide a run's status by stage, and under ``_NEXT`` the job that waits to serve.

    ``queued`` as for :func:`stages_of`. A job that has not begun and is not recorded (it was submitted by
    hand, or ``submit`` was killed) is searched in the queue.
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
        jobs["serve"] = run.renewal.job_id  # the job has begun, but has not recorded its begin yet
    current = RunJob.of(run.paths, run.plan, jobs)
    following = RunJob.of(run.paths, run.plan, {"serve": run.renewal.next_job_id}).get("serve")
    return current if following is None else current | {_NEXT: following}


def sweep_job(folder: str, job_id: str) -> RunJob:
    """Return the job that runs the variants of a sweep."""
    return replace(RunJob.of(RunPaths(folder), None, {"sweep": job_id})["sweep"], name=SWEEP_JOB_NAME)


def queued_jobs(run: RunSnapshot) -> dict[str, RunJob]:
    """Return the jobs in Slurm's queue that run a script of this run, by stage, recorded or not.

    A job is not recorded if ``submit`` was killed, or the previous job (``serve.renew``) was cancelled, just
    after Slurm had accepted the job. Raises SubmissionError if Slurm does not answer.
    """
    return RunJob.of(run.paths, run.plan, {} if run.is_local else _queued(run, run.stages))


def _queued(
    run: RunSnapshot, stages: Iterable[str], queued: Mapping[Path, str] | None = None
) -> dict[str, str]:
    """Return the newest queued job of each stage in ``stages``; ``queued`` as for :func:`stages_of`."""
    scripts = {run.paths.sbatch(stage): stage for stage in stages}
    if queued is None:
        token = run.submission.token if run.submission else None
        queued = Slurm(*run.controller).find_scripts(dict.fromkeys(scripts, token))
    return {scripts[script]: job for script, job in queued.items() if script in scripts}


# The status of each stage ----------------------------------------------------------------------


def stages_of(
    run: RunSnapshot,
    watcher: JobWatcher | None = None,
    *,
    mode: str = "force",
    queued: Mapping[Path, str] | None = None,
) -> list[StageStatus]:
    """Return the status of each stage, in the order of their dependencies.

    ``queued`` has the queued jobs by script, if the caller has already searched the queue. Raises
    SubmissionError if Slurm does not answer.
    """
    if run.is_local:
        return [_timed(run, _local_stage(run, name)) for name in job_ids(run)]
    watched, watcher = watched_jobs(run, queued), watcher or JobWatcher(Slurm(*run.controller))
    return _slurm_stages(run, watched, watcher.job_infos(watched.values(), mode))


def _slurm_stages(
    run: RunSnapshot, watched: Mapping[str, RunJob], answers: Mapping[RunJob, JobInfo] | None
) -> list[StageStatus]:
    """Return the status of each stage from Slurm's ``answers``; ``None``: Slurm has not answered."""
    infos = {name: (answers or {}).get(job) for name, job in watched.items()}
    stages = []
    for name in job_ids(run):
        stage = _slurm_stage(run, name, watched.get(name), infos.get(name), answered=answers is not None)
        if name == "serve":
            stage = _renewed(run, stage, watched.get(_NEXT), infos.get(_NEXT))
        stages.append(_timed(run, stage))
    return stages


def _slurm_stage(
    run: RunSnapshot, name: str, job: RunJob | None, info: JobInfo | None, *, answered: bool = True
) -> StageStatus:
    """Return the status of a stage from Slurm's answer about its job and from the run's own files."""
    if job is None:
        return _without_job(run, name, INTERRUPTED if _was_interrupted(run) else NOT_SUBMITTED)
    job_id, submission = job.job_id, run.submission
    last = last_mark(run, name) or _NO_EVENT
    within_sweep = submission is not None and submission.within is not None
    if within_sweep and (stage := _stage_in_sweep(run, name, job_id, last, info)) is not None:
        return stage
    if info is None or info.state.name == LOST.name:
        # Slurm does not know the job: the stage's last event and its heartbeats decide.
        if last.name == "stage_end":
            return _ended(name, job_id, last)
        if info is None and 0 <= _silent_for_s(run, name) < _ALIVE_S:
            note = f" by its own files; Slurm does not {'know its job' if answered else 'answer now'}"
            return _in_state(name, STATES["RUNNING"], job_id, note)
        unknown = LOST if answered else UNANSWERED
        return _in_state(name, unknown if info is None else info.state, job_id)
    state, code = info.state, info.exit_code
    is_of_job = last.data.get("job_id") == job_id
    if state.final and last.name == "stage_end" and is_of_job:
        code = int(last.data["exit_code"])  # not Slurm's, because sacct shows 137 as 9
    note = f": {explain_reason(info.reason, info.job_id)}" if info.reason else ""
    if state.name == "NODE_FAIL":
        log = "\n".join(last_lines(run.paths.batch_log(name), 50))
        note += "".join(f": {node}" for node in re.findall(r"error: Node failure on ([\w.-]+)", log)[-1:])
    if info.exit_signal in _SIGNALS and not state.ok:
        note += f" (its batch script was killed by signal {info.exit_signal})"
    elif state.name == "FAILED" and not info.exit_signal:
        killer = _killer(run, name) if last.name == "stage_begin" and is_of_job else None
        note += f" (its script was killed by {killer})" if killer else _exit_code_note(code)
    job_events = [event.name for event in run.events(name) if event.data.get("job_id") == job_id]
    if state.name in ("COMPLETED", "FAILED") and not info.exit_signal and run.renewal is None:
        log_file = stat_of(run.paths.batch_log(name))
        if not job_events and log_file is not None and not log_file.st_size:
            state = STATES["FAILED"]
            note += ": its script never began, as if a file that bash reads first (BASH_ENV) had ended it"
            if code:  # a script that fails writes an error, unless there is no room for one
                note += ", or the run folder's file system is or was full"
    is_recorded = submission is None or name in submission.stages
    if not state.final and not is_recorded and _was_interrupted(run):
        note += "; its submission was not completed, so the job will do nothing when it starts"
    # Requeued: the script has begun twice, or it has begun and the job waits again. A job that was cancelled
    # while it waited says so in its log only.
    begins = job_events.count("stage_begin")
    waits = state.name in ("PENDING", "REQUEUED", "REQUEUE_HOLD")
    if begins == 1 and state.name == "CANCELLED":
        waits = any("DUE TO JOB REQUEUE" in line for line in last_lines(run.paths.batch_log(name), 50))
    requeued = begins > 1 or (begins == 1 and waits)
    if requeued:
        note += "; Slurm has ended it once and put it back into the queue"
    own: dict[str, Any] = {"exit_signal": info.exit_signal, "requeued": requeued, "times": info.times}
    own |= {"gpus": info.gpus, "energy_j": info.energy_j}
    # Not within a sweep's job, whose times and GPUs cover all variants.
    return _in_state(
        name, state, job_id, note, nodes=info.nodes, exit_code=code, **({} if within_sweep else own)
    )


def _stage_in_sweep(
    run: RunSnapshot, name: str, job_id: str, last: Event, info: JobInfo | None
) -> StageStatus | None:
    """Return the status of a stage that its sweep's job is not running; ``None`` if it may be running."""
    cancelled = [event for event in run.events(name) if event.name == "stage_cancelled"]
    if cancelled:  # decides even if the stage's script has recorded an end afterwards
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
    note = f": it waits for its turn in the sweep's job {job_id}"
    if info.state.name == "PENDING":
        note = f": {explain_reason(info.reason, info.job_id)}" if info.reason else ""
    return _in_state(name, STATES["PENDING"], job_id, note)


def _renewed(
    run: RunSnapshot, stage: StageStatus, following: RunJob | None, info: JobInfo | None
) -> StageStatus:
    """Return the status of a serve stage with a waiting next job: the next job's, once this job has ended."""
    renewal = run.renewal
    if following is None or renewal is None or stage.job_id != renewal.job_id:
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


def _local_stage(run: RunSnapshot, name: str) -> StageStatus:
    """Return the status of a stage of the local profile, started by ``submit`` or by the user with bash."""
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
        return _in_state(name, STATES["CANCELLED"], job_id)  # even if the script recorded an end afterwards
    if last.name == "stage_end":
        return _ended(name, job_id, last)
    if job is None:
        return _in_state(name, STATES["RUNNING"], job_id)  # no process ID is known, so assume that it runs
    # Either process is enough: the script may outlive the controller that submitit started for it.
    group, started = int(last.data.get("group", 0)), last.data.get("group_started")
    if is_same_process(int(job.job_id), job.process_started) or (begun and is_same_process(group, started)):
        return _in_state(name, STATES["RUNNING" if begun else "PENDING"], job_id)
    if begun:
        return _in_state(name, STATES["FAILED"], job_id, " (its script was killed)")
    return _in_state(name, STATES["CANCELLED"], job_id)  # never begun, because an earlier stage failed


def _was_interrupted(run: RunSnapshot) -> bool:
    """Return whether the submission stopped half-way: an event shows it, or its jobs have stopped waiting."""
    if run.submission is None or run.submission.complete:
        return False
    recorded = any(event.name == "submission_interrupted" for event in run.all_events)
    changed = stat_of(run.paths.jobs)
    return recorded or (changed is not None and time.time() - changed.st_mtime > SUBMISSION_TIMEOUT_S)


def _without_job(run: RunSnapshot, name: str, otherwise: JobState) -> StageStatus:
    """Return the status of a stage without a job: cancelled if ``cancel`` stopped the submission."""
    request, record = run.stop_request, run.submission
    stopped = record and not record.complete and request is not None and request.by == CANCEL
    return _in_state(name, STATES["CANCELLED"] if stopped else otherwise)


def _timed(run: RunSnapshot, stage: StageStatus) -> StageStatus:
    """Return a stage with its GPUs and times: from Slurm, else from the submission's record and events."""
    name, job_id, times = stage.stage, stage.job_id, stage.times
    job = run.submission.stages.get(name) if run.submission else None
    # With the local profile, scripts record job IDs of their own, not the process ID in the record.
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
    gpus = run.stages.get(name) if stage.gpus is None else stage.gpus
    waited_s, ran_s = _between(submitted_at, begun), _between(begun, ended if stage.final else time.time())
    return replace(
        stage,
        times=replace(times, submitted_at=submitted_at, started_at=begun, ended_at=ended),
        gpus=gpus,
        waited_s=waited_s,
        gpu_hours=None if ran_s is None or gpus is None else ran_s / 3600 * gpus,
    )


def _between(first: float | None, last: float | None) -> float | None:
    """Return the seconds between two times, at least 0."""
    # Never negative: the clocks of controller, nodes and this machine may differ.
    return None if first is None or last is None else max(0.0, last - first)


def _killer(run: RunSnapshot, stage: str) -> str | None:
    """Return the signal that killed the script of a stage without a recorded end, from srun's log message.

    The exit code does not show the signal: for a killed task srun exits with the bare number of the signal.
    """
    logged = _TASK_END.findall("\n".join(last_lines(run.paths.batch_log(stage), 50)))
    killers = (number for number in signal.Signals if signal.strsignal(number) in logged[-1:])
    return next((f"signal {killer.value}, {killer.name}" for killer in killers), None)


def _exit_code_note(code: int | None) -> str:
    """Return a note about an exit code other than 0, with the signal that it may stand for; else nothing."""
    name = _SIGNALS.get((code or 0) - 128)
    after = f", as after {name}" if name else ""
    return f" (exit code {code}{after})" if code else ""


def _ended(name: str, job_id: str | None, end: Event) -> StageStatus:
    code = int(end.data.get("exit_code", 1))
    state = STATES["COMPLETED" if code == 0 else "FAILED"]
    return _in_state(name, state, job_id, _exit_code_note(code), exit_code=code)


def _in_state(
    name: str, state: JobState, job_id: str | None = None, note: str = "", **more: Any
) -> StageStatus:
    return StageStatus(name, state.name, state.final, state.ok, state.sentence + note, job_id, **more)


def _silent_for_s(run: RunSnapshot, stage: str) -> float:
    """Return the seconds since the last heartbeat of the companion or of living ranks; -1: no heartbeat."""
    alive = [rank for step in run.steps("serve") for rank in run.ranks(step) if rank.ended_at is None]
    beats = [run.paths.rank_heartbeat(rank.step, rank.rank) for rank in alive]
    stats = map(stat_of, [run.paths.heartbeat] if stage == "companion" else beats)
    return min((abs(time.time() - stat.st_mtime) for stat in stats if stat is not None), default=-1.0)


# The state of the run --------------------------------------------------------------------------


def status_of(run: RunSnapshot, stages: list[StageStatus]) -> RunStatus:
    """Return the status of a run from the status of its stages."""
    state = state_of(run, stages)
    endpoint = None if state.final else run.endpoint  # a killed server leaves its endpoint file behind
    # SERVING, too: a server that is kept running outlives a failed companion.
    failures = _failures(stages) if state.final or state is RunState.SERVING else []
    by_itself = (stage for stage in failures if stage.state != "CANCELLED")
    failed = next(by_itself, failures[0] if failures else None)
    if state is RunState.FAILED:
        failed = _lost_server(run, stages) or failed
    explained = failed if state in (RunState.FAILED, RunState.SERVING) else None
    servers = list_logs(run, "serve")
    failure = None if failed is None else _failure(run, failed)
    causes: list[Finding] = []
    if explained is not None and failure is not None:
        from trtllm_hpc.runs.causes import causes_of  # only failures need the table of causes

        found, name = causes_of(run, failure), call_name(run.paths)
        causes = [finding.shown(run.quoted, name, explained.job_id) for finding in found]
    events = [] if endpoint is None else of_last_job(run.events("serve"))
    restarts = [run.quoted(str(event.data.get("why"))) for event in events if event.name == "front_restarted"]
    failed_gateways = [
        event.data.get("why", "it has ended") for event in events if event.name == "gateway_failed"
    ]
    instances = [InstanceStatus(**known_fields(InstanceStatus, record)) for record in run.instances or ()]
    is_over = any(stage.stage == "serve" and stage.final for stage in stages)
    for place, instance in enumerate(instances):  # after the end of the stage no instance can still serve
        instance_state = "ended" if is_over and instance.state != "failed" else instance.state
        reason = None if instance.reason is None else run.quoted(instance.reason)
        instances[place] = replace(instance, state=instance_state, reason=reason)
    return RunStatus(
        run_id=run.paths.run_id,
        folder=str(run.paths.folder),
        state=state,
        sentence=run.quoted(_sentence(run, state, stages, failed, failure, causes)),
        stages=tuple(stages),
        ranks=tuple(
            RankStatus(log.rank, log.host, log.state, log.instance) for log in servers if log.rank is not None
        ),
        instances=tuple(instances),
        endpoint=endpoint,
        exit_code=_exit_code(state, failed, failure),
        causes=tuple(causes),
        use=run_use(run, stages),
        bad_nodes=bad_nodes(run.paths),
        failed_jobs=tuple(_failed_jobs(run)),
        front_restarts=tuple(restarts),
        gateway_failure=run.quoted(str(failed_gateways[-1])) if failed_gateways else None,
        clients=clients_of(run.paths),
        evaluation=read_evaluation(run.paths.evaluation()),
    )


def run_use(run: RunSnapshot, stages: Sequence[StageStatus]) -> RunUse:
    """Return the use of a run's stages, including earlier jobs of the same stages."""
    energies = [stage.energy_j for stage in stages if stage.energy_j is not None]
    hours = [stage.gpu_hours for stage in stages if stage.gpu_hours is not None]
    earlier = sum(_earlier_gpu_hours(run, {stage.stage: stage.times.started_at for stage in stages}))
    gpus = {gpu["uuid"]: gpu for step in run.steps("serve") for rank in run.ranks(step) for gpu in rank.gpus}
    is_measured = bool(gpus) and all(gpu["total_s"] for gpu in gpus.values())
    return RunUse(
        gpu_hours=sum(hours) + earlier if hours or earlier else None,
        energy_j=sum(energies) if energies else None,
        server_mean_w=sum(gpu["total_j"] / gpu["total_s"] for gpu in gpus.values()) if is_measured else None,
        server_peak_w=sum(gpu["total_peak_w"] for gpu in gpus.values()) if is_measured else None,
    )


def _earlier_gpu_hours(run: RunSnapshot, started: Mapping[str, float | None]) -> Iterator[float]:
    """Yield the GPU-hours of each earlier job (before ``resume`` or a renewal), up to the job's last event.

    ``started``: when the present job of each stage started, in seconds since the epoch.
    """
    snapshots = [run]
    with suppress(OSError):
        snapshots += [RunSnapshot(RunPaths(attempt)) for attempt in run.paths.attempts.iterdir()]
    for snapshot in snapshots:
        for stage, gpus in run.stages.items():
            spans: list[tuple[float, float]] = []
            for event in snapshot.events(stage):
                if event.name == "stage_begin":
                    spans.append((event.time, event.time))
                elif spans:
                    spans[-1] = (spans[-1][0], event.time)
            # Plus 1, because Slurm's times are whole seconds, and a renewed server's job may end and the next
            # one start within the same second.
            before = (started.get(stage) or 0.0) + 1 if snapshot is run else math.inf
            for begin, end in spans:
                if end < before:
                    yield max(0.0, end - begin) / 3600 * (gpus or 0)


def state_of(run: RunSnapshot, stages: list[StageStatus]) -> RunState:
    """Return the state of a run with these stages."""
    names = {stage.state for stage in stages}
    if run.submission is None and names == {NOT_SUBMITTED.name}:
        return RunState.RENDERED
    is_running = any(stage.stage == "serve" and stage.state == "RUNNING" for stage in stages)
    serves = is_running and run.endpoint is not None
    if serves and run.plan is not None and not run.plan.stops_server:
        return RunState.SERVING
    # A run without stages is LOST, not completed.
    if not stages or any(stage.state == LOST.name for stage in stages):
        return RunState.LOST
    is_failed = any(stage.state != "CANCELLED" for stage in _failures(stages))
    if is_failed or _lost_server(run, stages) is not None:
        return RunState.FAILED
    if "CANCELLED" in names:
        return RunState.CANCELLED
    if all(stage.ok for stage in stages):
        return RunState.COMPLETED
    if serves:
        return RunState.SERVING
    return RunState.RUNNING if names & {"RUNNING", "COMPLETING", "COMPLETED"} else RunState.PENDING


def is_settled(state: RunState, stages: Iterable[StageStatus]) -> bool:
    """Return whether the run is over and every stage has ended; after a failure other stages may still run.

    A run with a lost job is never settled, because accounting may only be late.
    """
    return state.final and state is not RunState.LOST and all(stage.final for stage in stages)


def _lost_server(run: RunSnapshot, stages: list[StageStatus]) -> StageStatus | None:
    """Return the serve stage if its server is lost or has failed, but Slurm's state of the job hides that.

    Slurm waits minutes for a node that does not answer, and meanwhile shows the job as running or completing.
    A requeued job is pending again.
    """
    serve = next((stage for stage in stages if stage.stage == "serve"), None)
    if serve is None:
        return None
    companion = next((stage for stage in _failures(stages) if stage.stage == "companion"), None)
    # A companion that was cancelled like its server may not have lost it.
    if serve.requeued and companion is not None and not (serve.final and companion.state == "CANCELLED"):
        sentence = "was put back into the queue by Slurm, which ended its server"
        return replace(serve, state="REQUEUED", sentence=sentence)
    if serve.state not in ("RUNNING", "COMPLETING", UNANSWERED.name):
        return None
    last = last_mark(run, "serve")
    if last is not None and last.name == "stage_end" and last.data.get("job_id") == serve.job_id:
        code = int(last.data.get("exit_code", 1))
        if code in (0, 143):
            return None
        sentence = f"has failed (exit code {code}), and Slurm has not ended its job yet"
        return replace(serve, sentence=sentence, exit_code=code)
    begun_at = 0.0 if last is None else last.time
    given_up = any(event.name == "failed" and event.time >= begun_at for event in run.events("serve"))
    unanswered = serve.state == UNANSWERED.name
    if unanswered and not given_up and first_failure(run) is not None:
        states = {instance.get("state") for instance in run.instances or ()}
        given_up = states.isdisjoint(("starting", "restarting"))
    if not given_up:
        return None
    now = "; Slurm does not answer now" if unanswered else ", and Slurm has not ended its job yet"
    return replace(serve, sentence=f"has lost its server{now}")


def _failure(run: RunSnapshot, failed: StageStatus) -> StageFailure:
    """Return the facts about a stage's failure in the run's own files."""
    from trtllm_hpc.runs.causes import StageFailure

    stage, companion, serve = failed.stage, last_mark(run, "companion"), last_mark(run, "serve")
    if stage == "serve" and companion is not None and serve is not None:
        # If the companion ran in this job's allocation and its exit code became the job's, it is at fault.
        inside = companion.data.get("job_id") == serve.data.get("job_id")
        if inside and companion.data.get("exit_code") == failed.exit_code:
            stage = "companion"
    by_a_rank = stage == "serve" and failed.state in _CAUSED_BY_A_RANK
    first = first_failure(run) if by_a_rank else None
    recorded = [event.data for event in of_last_job(run.events(stage)) if "reason" in event.data]
    last = recorded[-1] if recorded else {}
    reported = str(last["reason"]) if last else None
    job_facts = (failed.state, failed.exit_signal, failed.job_id)
    return StageFailure(stage, *job_facts, first, reported, last.get("next"))


def _failed_jobs(run: RunSnapshot) -> Iterator[FailedJob]:
    """Yield the earlier jobs that failed, each with the cause in the log of the rank that died first."""
    for record in [] if run.renewal is None else run.renewal.failed:
        job = FailedJob(**known_fields(FailedJob, record))
        attempt = RunSnapshot(RunPaths(run.paths.attempts / str(job.attempt)))
        attempt.plan = run.plan
        first = first_failure(attempt)
        cause = None if first is None else first.log.late_cause
        known = cause is not None and cause.degree is not Degree.FIRST_ERROR
        why = f"{job.why}: {cause.sentence.rstrip('.')}" if cause is not None and known else job.why
        yield replace(job, why=run.quoted(why))


def _failures(stages: Iterable[StageStatus]) -> list[StageStatus]:
    """Return the stages that failed, except a companion that failed because its server was cancelled."""
    failed = [stage for stage in stages if stage.final and not stage.ok]
    for serve in failed:
        cancelled_at = serve.times.ended_at
        if serve.stage == "serve" and serve.state == "CANCELLED" and serve.times.started_at and cancelled_at:
            ended = {stage.stage: stage.times.ended_at or cancelled_at for stage in failed}
            ended |= {stage.stage: 0.0 for stage in failed if stage.state == INTERRUPTED.name}
            return [
                stage for stage in failed if stage.stage != "companion" or ended[stage.stage] < cancelled_at
            ]
    return failed


def _sentence(
    run: RunSnapshot,
    state: RunState,
    stages: list[StageStatus],
    failed: StageStatus | None,
    failure: StageFailure | None,
    causes: Sequence[Finding],
) -> str:
    if not stages:
        return f"nothing is known about its jobs: {run.paths.plan} is gone or damaged"
    if failed is None or failure is None:
        sentence = _progress_sentence(run, state, stages) + _troubles(run, stages)
        if not state.final and state is not RunState.RENDERED:
            with suppress(OSError):  # the folder is gone, which _damage reports
                # Checked here, because a run cannot record on a full disk that the disk is full.
                space = disk_space(os.uname().nodename, "the run folder", run.paths.folder)
                sentence += "" if space is None else f"; {space.message}"
    else:
        sentence = "the server goes on; " if state is RunState.SERVING else ""
        sentence += f"stage {failed.stage} {failed.sentence}"
        why = failure.reported or (failure.first.sentence if failure.first is not None else "")
        if not why and failed.state == "FAILED" and causes and causes[0].line is not None:
            why = f"its log says {causes[0].match!r}"
        sentence += f"; {why}" if why else ""
    earlier = 0 if run.renewal is None else len(run.renewal.failed)
    before = f"; {earlier} earlier {'jobs have' if earlier > 1 else 'job has'} failed" if earlier else ""
    return sentence + before + _damage(run, state)


def _damage(run: RunSnapshot, state: RunState) -> str:
    """Return the end of the sentence about missing or unreadable files of the run folder; may be empty."""
    paths = run.paths
    needed = [] if state.final else [paths.runtime, paths.scripts, paths.logs, paths.events, paths.ranks]
    needed += [paths.jobs] * any(event.data.get("submitted") for event in run.all_events)
    lost = ["plan.json"] * (not run.plan) + [file.name for file in needed if stat_of(file) is None]
    records = {"submission": paths.jobs, "endpoint": paths.endpoint}
    unread = {name: file for name, file in records.items() if not getattr(run, name)}
    # Read again if the file exists: it may have been written after the first look.
    lost += [
        file.name for name, file in unread.items() if stat_of(file) and not getattr(RunSnapshot(paths), name)
    ]
    unread_instances = run.instances is not None and run.unread.get(paths.instances.name) == ""
    lost = [name for name in lost if name not in run.unread] + [paths.instances.name] * unread_instances
    lacks = f"; the run folder lacks {', '.join(lost)}, or it is damaged" if lost else ""
    lacks += "".join(f"; {name} cannot be read: {why}" for name, why in run.unread.items() if why)
    if not state.final and not os.access(paths.folder, os.W_OK):
        lacks += (
            "; the run folder cannot be written: mend that soon, or results are kept in /tmp of their node"
        )
    return lacks


def _progress_sentence(run: RunSnapshot, state: RunState, stages: list[StageStatus]) -> str:
    known = {RunState.RENDERED: "not submitted", RunState.COMPLETED: "every stage has completed"}
    if state in known:
        request = run.stop_request
        return known[state] + (f": {request.reason}" if request is not None and request.by == IDLE else "")
    busy = next((stage for stage in stages if not stage.final), None)
    if busy is None:
        return str(state.value)
    progress = _progress(run, busy.stage) if busy.state == "RUNNING" else ""
    marks = [event for event in run.events("serve") if event.name in (IDLE, "ready")]
    if state is RunState.SERVING and marks and (ends_at := marks[-1].data.get("ends_at")) is not None:
        minutes = max(1, math.ceil((ends_at - time.time()) / 60))
        progress += f"; nobody asks: the server ends in {minutes} min (serve.idle_minutes), "
        progress += "unless a request comes"
    return f"stage {busy.stage} {busy.sentence}{progress}"


def _progress(run: RunSnapshot, stage: str) -> str:
    """Return the end of the sentence about a running stage's progress; may be empty."""
    if stage == "build":
        step = build_step(run)
        return "" if step is None else f", step {step[0]} of {step[1]}: {step[2]}"
    if stage == "download":
        model = None if run.plan is None else run.plan.model
        record = record_of(model)
        return f"; {record.downloaded(Path(model))}" if model is not None and record is not None else ""
    if stage != "serve":
        return ""
    nodes = run.ranks("staging")
    busy = sum(node.ended_at is None for node in nodes)
    copied, total = (sum(node.details[key] for node in nodes) / 2**30 for key in ("copied", "bytes"))
    copies = f"; {busy} of {len(nodes)} nodes still copy weights to their disks"
    return f"{copies}: {copied:.2f} of {total:.2f} GiB" if busy else ""


def _troubles(run: RunSnapshot, stages: Sequence[StageStatus]) -> str:
    """Return the end of the sentence about stopped or silent parts of a living run; may be empty."""
    troubles: dict[tuple[str, object], str] = {}
    silent_s = _silent_for_s(run, "serve")
    is_running = any((stage.stage, stage.state) == ("serve", "RUNNING") for stage in stages)
    if silent_s > 4 * BEAT_S and is_running:
        troubles["", ""] = f"no rank has written for {silent_s:.0f} s: the run's file system may stand still"
    for event in () if all(stage.final for stage in stages) else run.all_events:
        if event.name in ("stage_begin", "stage_end"):
            troubles = {key: why for key, why in troubles.items() if key[0] != event.stage}
        elif event.name == "instance_end":  # the restarted instance does not report the old trouble's end
            ended = f"serve.{event.data.get('instance')}/"
            troubles = {key: why for key, why in troubles.items() if not str(key[1]).startswith(ended)}
        elif event.name == TROUBLE:
            troubles[event.stage, event.data.get("part")] = event.data.get("why") or ""
    return "".join(f"; {why}" for why in troubles.values() if why)


def build_step(run: RunSnapshot) -> tuple[int, int, str] | None:
    """Return the number of the build's step, the number of steps and a message; ``None`` before the first."""
    steps = [event.data for event in run.events("build") if event.name == "progress"]
    return (int(steps[-1]["step"]), int(steps[-1]["of"]), str(steps[-1]["message"])) if steps else None


def _exit_code(state: RunState, failed: StageStatus | None, failure: StageFailure | None) -> ExitCode:
    """Return the exit code of ``submit --wait`` for this state and failure."""
    if state is RunState.LOST or (failed and failed.state == LOST.name):
        return ExitCode.LOST
    if state is RunState.CANCELLED or (failed and failed.state == "CANCELLED"):
        return ExitCode.CANCELLED
    if failed is None or failure is None:
        return ExitCode.OK
    if failed.state == INTERRUPTED.name or failed.exit_code == ExitCode.SUBMISSION:
        return ExitCode.SUBMISSION
    if failed.stage == "build":
        return ExitCode.BUILD
    known = {ExitCode.READINESS, ExitCode.REQUEST, ExitCode.MEASUREMENT, ExitCode.ACCURACY}
    # A serve job with the companion in its allocation ends with the companion's exit code.
    known |= {ExitCode.CONFIG} if failure.stage != "serve" else set()
    known |= {ExitCode.START} if failed.stage != "serve" else set()
    otherwise = ExitCode.START if failed.stage == "serve" else ExitCode.REQUEST
    return next((code for code in known if code == failed.exit_code), otherwise)
