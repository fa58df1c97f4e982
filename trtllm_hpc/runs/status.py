"""The status of a run: of its jobs by Slurm, and of its stages and ranks by the files that its jobs write."""

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
from trtllm_hpc.logs.diagnose import first_failure, stage_error
from trtllm_hpc.logs.files import last_mark, list_logs
from trtllm_hpc.logs.reading import last_lines, stat_of
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import RunPaths, call_name, remove_abandoned
from trtllm_hpc.runs.guests import ProxyClient, clients_of
from trtllm_hpc.runtime.bad_nodes import BadNode
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
"""States whose cause is the rank that died first; others (a time limit...) have another cause."""
_PATIENCE_S = 10.0
"""For one answer of Slurm."""
_ALIVE_S = 45.0
"""A heartbeat that is older says nothing about whether the job runs."""
_SIGNALS = {number.value: number.name for number in signal.Signals}
_TASK_END = re.compile(r"^srun: error: \S+: tasks? [\d,-]+: (.+?)(?: \(core dumped\))?$", re.MULTILINE)
_NO_EVENT = Event(0.0, "", "")
_OF_SIGNALS = (137, 143)
"""Exit codes of a script that the end of its job has ended."""
_NEXT = "next"
"""Beside the names of the stages: the job that waits to serve (``serve.renew``)."""
SWEEP_JOB_NAME = "trtllm-hpc-sweep"
"""Of a job that runs the variants of a sweep."""


class RunState(str, enum.Enum):
    """A run as a whole."""

    RENDERED = "rendered"
    """Written, not submitted."""
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
    """The number that Slurm shows beside the exit code: a signal, or 53, 125."""
    requeued: bool = False
    """Whether Slurm has ended its job once and put it back into the queue."""
    next_job_id: str | None = None
    """The job that waits to serve after this one (``serve.renew``)."""
    times: JobTimes = field(default_factory=JobTimes)
    gpus: int | None = None
    """GPUs that it was given, or else asks for."""
    waited_s: float | None = None
    """From its submission to its start; ``None`` before that."""
    gpu_hours: float | None = None
    """Its GPUs times the hours from its start to its end, or until now."""
    energy_j: float | None = None
    """In joules; ``None`` where Slurm does not measure it, and before its end."""


@dataclass(frozen=True)
class RankStatus:
    """One rank of the server, from its own record."""

    rank: int
    host: str | None
    state: str
    """``running``, ``ended 0``, ``stopped by companion``... in a few words."""
    instance: int | None = None
    """``None`` where there is only one."""


@dataclass(frozen=True)
class InstanceStatus:
    """One server instance, as last recorded by the supervisor."""

    instance: int
    state: str
    """``starting``, ``ready``, ``restarting``, ``failed`` or ``ended``."""
    restarts: int
    reason: str | None
    """How it ended the last time."""


@dataclass(frozen=True)
class RunUse:
    """What a run has used so far; ``None`` is what is not known."""

    gpu_hours: float | None = None
    """Of all its jobs, also of those before ``resume``, and of the servers before the last renewal."""
    energy_j: float | None = None
    """In joules, of the stages whose energy Slurm has measured."""
    server_mean_w: float | None = None
    """Mean power of all GPUs of the server since its last start, by NVML."""
    server_peak_w: float | None = None
    """The highest power of each of them, added up."""


@dataclass(frozen=True)
class RunStatus:
    """The state of a run, of its jobs and of its ranks."""

    run_id: str
    folder: str
    """The run folder."""
    state: RunState
    """``rendered``: not submitted. ``serving``: the endpoint is published."""
    sentence: str
    """What the run does, or what failed first and why."""
    stages: tuple[StageStatus, ...]
    ranks: tuple[RankStatus, ...]
    instances: tuple[InstanceStatus, ...]
    """In runs with a proxy."""
    endpoint: Endpoint | None
    """Where the server answers; ``None`` unless the run serves."""
    exit_code: ExitCode
    """Exit code of ``submit --wait`` when this status is final."""
    causes: tuple[Finding, ...] = ()
    """Of what has failed: why, the likeliest cause first."""
    use: RunUse = RunUse()
    """What it has used."""
    bad_nodes: tuple[BadNode, ...] = ()
    """Nodes because of which servers of the run have ended; its next jobs do not get them."""
    failed_jobs: tuple[FailedJob, ...] = ()
    """The jobs of a renewed server that failed before the present one (``serve.renew``)."""
    front_restarts: tuple[str, ...] = ()
    """Why the front of a disaggregated run was started again, each time."""
    gateway_failure: str | None = None
    """Why nobody answers over OpenAI's protocol any more, though the server does over Triton's."""
    clients: tuple[ProxyClient, ...] = ()
    """Who has asked the server how often, and its guests."""
    evaluation: EvaluationSummary | None = None
    """Scores of the companion's evaluation, once it has finished."""

    @property
    def settled(self) -> bool:
        """Whether every stage has ended, and the run stays as it is."""
        return is_settled(self.state, self.stages)


def run_status(
    run: RunPaths | RunSnapshot, watcher: JobWatcher | None = None, *, mode: str = "force"
) -> RunStatus:
    """Return the status of a run; Slurm is queried once at most.

    Once every job has ended, temporary files that killed processes left in the run folder are removed.
    Raises SubmissionError if Slurm does not answer.

    Args:
        run: a snapshot, if the caller needs more of the run folder than its status.
        watcher: pass the same one to several calls, so that jobs that have ended, and
            accounting that a site does not have, are not queried again.
        mode: see :meth:`~trtllm_hpc.scheduler.slurm.JobWatcher.job_infos`.
    """
    run = run if isinstance(run, RunSnapshot) else RunSnapshot(run)
    status = status_of(run, stages_of(run, watcher, mode=mode))
    if status.settled:
        remove_abandoned(run.paths.folder)
    return status


def status_or_files(run: RunPaths) -> tuple[RunStatus, SubmissionError | None]:
    """Return the status of a run; where Slurm does not answer within 10 s, by the run's own files.

    Slurm's error comes with it. Raises SubmissionError if Slurm cannot be asked at all.
    """
    snapshot = RunSnapshot(run)
    try:
        return run_status(snapshot, JobWatcher(Slurm(*snapshot.controller, timeout_s=_PATIENCE_S))), None
    except SubmissionError as error:
        if not error.transient or snapshot.submission is None:
            raise
        return unanswered_status(RunSnapshot(run)), error


def unanswered_status(run: RunSnapshot) -> RunStatus:
    """Return what a submitted run's own files show of it, while Slurm does not answer."""
    return status_of(run, _slurm_stages(run, watched_jobs(run, {}), None))


# The jobs of a run ----------------------------------------------------------------------------


def job_ids(run: RunSnapshot) -> dict[str, str | None]:
    """Return the job id of each stage: of its last script that has begun, else from the record."""
    begun = {it.stage: it.data.get("job_id") for it in run.all_events if it.name == "stage_begin"}
    jobs = {name: str(begun.get(name) or "") or None for name in run.stages}
    submitted = run.submission.stages if run.submission else {}
    # Of a stage that was run again by hand the newest id counts.
    return {**jobs, **{name: jobs.get(name) or job.job_id for name, job in submitted.items()}}


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

    ``queued`` are the jobs in the queue by their script, if Slurm was already asked for them. Raises
    SubmissionError if Slurm does not answer.
    """
    if run.is_local:
        return [_timed(run, _local_stage(run, name)) for name in job_ids(run)]
    watched, watcher = watched_jobs(run, queued), watcher or JobWatcher(Slurm(*run.controller))
    return _slurm_stages(run, watched, watcher.job_infos(watched.values(), mode))


def _slurm_stages(
    run: RunSnapshot, watched: Mapping[str, RunJob], answers: Mapping[RunJob, JobInfo] | None
) -> list[StageStatus]:
    """Return the status of each stage by what Slurm has answered; ``None``: it has not answered yet."""
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
    """Return the status of a stage by what Slurm knows of its job, and the run's files add to that."""
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
        if info is None and 0 <= _silent_for_s(run, name) < _ALIVE_S:
            note = f" by its own files; Slurm does not {'know its job' if answered else 'answer now'}"
            return _in_state(name, STATES["RUNNING"], job_id, note)
        unknown = LOST if answered else UNANSWERED
        return _in_state(name, unknown if info is None else info.state, job_id)
    state, code = info.state, info.exit_code
    of_this_job = last.data.get("job_id") == job_id
    if state.final and last.name == "stage_end" and of_this_job:
        code = int(last.data["exit_code"])  # sacct shows 137 as 9
    note = f": {explain_reason(info.reason, info.job_id)}" if info.reason else ""
    if state.name == "NODE_FAIL":
        log = "\n".join(last_lines(run.paths.batch_log(name), 50))
        note += "".join(f": {node}" for node in re.findall(r"error: Node failure on ([\w.-]+)", log)[-1:])
    if info.exit_signal in _SIGNALS and not state.ok:
        note += f" (its batch script was killed by signal {info.exit_signal})"
    elif state.name == "FAILED" and not info.exit_signal:
        killer = _killer(run, name) if last.name == "stage_begin" and of_this_job else None
        note += f" (its script was killed by {killer})" if killer else _exit_code_note(code)
    its_events = [event.name for event in run.events(name) if event.data.get("job_id") == job_id]
    if state.name in ("COMPLETED", "FAILED") and not info.exit_signal and run.renewal is None:
        log_file = stat_of(run.paths.batch_log(name))
        if not its_events and log_file is not None and not log_file.st_size:
            state = STATES["FAILED"]
            note += ": its script never began, as if a file that bash reads first (BASH_ENV) had ended it"
            if code:  # a script that fails writes an error, unless there is no room for one
                note += ", or the run folder's file system is full or was full then"
    is_recorded = submission is None or name in submission.stages
    if not state.final and not is_recorded and _was_interrupted(run):
        note += "; its submission did not come to its end, so it does nothing once it starts"
    # It waits though its script has begun before, or that has begun twice.
    begins = its_events.count("stage_begin")
    waits = state.name in ("PENDING", "REQUEUED", "REQUEUE_HOLD")
    if begins == 1 and state.name == "CANCELLED":  # it waited before that, if its log says so
        waits = any("DUE TO JOB REQUEUE" in line for line in last_lines(run.paths.batch_log(name), 50))
    requeued = begins > 1 or (begins == 1 and waits)
    if requeued:
        note += "; Slurm has ended it once and put it back into the queue"
    own: dict[str, Any] = {"exit_signal": info.exit_signal, "requeued": requeued, "times": info.times}
    own |= {"gpus": info.gpus, "energy_j": info.energy_j}
    # Of a sweep's job, times and GPUs are those of all variants.
    return _in_state(
        name, state, job_id, note, nodes=info.nodes, exit_code=code, **({} if within_sweep else own)
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
    note = f": it waits for its turn in the sweep's job {job_id}"
    if info.state.name == "PENDING":
        note = f": {explain_reason(info.reason, info.job_id)}" if info.reason else ""
    return _in_state(name, STATES["PENDING"], job_id, note)


def _renewed(
    run: RunSnapshot, stage: StageStatus, following: RunJob | None, info: JobInfo | None
) -> StageStatus:
    """Return the status of a serve stage that another job follows: that job's, once this one has ended."""
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
    if job is None:
        return _in_state(name, STATES["RUNNING"], job_id)  # without its process id nothing else is known
    # The script may run with or without its controller.
    group, started = int(last.data.get("group", 0)), last.data.get("group_started")
    if is_same_process(int(job.job_id), job.process_started) or (begun and is_same_process(group, started)):
        return _in_state(name, STATES["RUNNING" if begun else "PENDING"], job_id)
    if begun:
        return _in_state(name, STATES["FAILED"], job_id, " (its script was killed)")
    return _in_state(name, STATES["CANCELLED"], job_id)  # a stage that it depends on failed


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
    gpus = run.planned_gpus.get(name) if stage.gpus is None else stage.gpus
    waited_s, ran_s = _between(submitted_at, begun), _between(begun, ended if stage.final else time.time())
    return replace(
        stage,
        times=replace(times, submitted_at=submitted_at, started_at=begun, ended_at=ended),
        gpus=gpus,
        waited_s=waited_s,
        gpu_hours=None if ran_s is None or gpus is None else ran_s / 3600 * gpus,
    )


def _between(first: float | None, last: float | None) -> float | None:
    """Return the seconds between two times; the clocks of controller, nodes and this machine may differ."""
    return None if first is None or last is None else max(0.0, last - first)


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


def _in_state(
    name: str, state: JobState, job_id: str | None = None, note: str = "", **more: Any
) -> StageStatus:
    return StageStatus(name, state.name, state.final, state.ok, state.sentence + note, job_id, **more)


def _silent_for_s(run: RunSnapshot, stage: str) -> float:
    """Return the seconds since the last heartbeat of the companion or of the ranks; -1: none is alive."""
    alive = [it for step in run.serve_steps for it in run.ranks(step) if it.ended_at is None]
    beats = [run.paths.rank_heartbeat(it.step, it.rank) for it in alive]
    stats = map(stat_of, [run.paths.heartbeat] if stage == "companion" else beats)
    return min((abs(time.time() - stat.st_mtime) for stat in stats if stat is not None), default=-1.0)


# The state of the run --------------------------------------------------------------------------


def status_of(run: RunSnapshot, stages: list[StageStatus]) -> RunStatus:
    """Return the status of a run whose stages are known."""
    state = state_of(run, stages)
    endpoint = None if state.final else run.endpoint  # a killed leader leaves its file behind
    # A server that is kept running outlives a companion that has failed.
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

        found, name = causes_of(run, failure, servers), call_name(run.paths)
        causes = [it.naming(name, explained.job_id).shown(run.quoted) for it in found]
    served = [] if endpoint is None else of_last_job(run.events("serve"))
    restarts = [run.quoted(str(it.data.get("why"))) for it in served if it.name == "front_restarted"]
    failed_gateways = [it.data.get("why", "it has ended") for it in served if it.name == "gateway_failed"]
    instances = [InstanceStatus(**known_fields(InstanceStatus, it)) for it in run.instances or ()]
    is_over = any(stage.stage == "serve" and stage.final for stage in stages)
    for place, it in enumerate(instances):  # after the end of the stage none can still serve
        its_state = "ended" if is_over and it.state != "failed" else it.state
        reason = None if it.reason is None else run.quoted(it.reason)
        instances[place] = replace(it, state=its_state, reason=reason)
    return RunStatus(
        run_id=run.paths.run_id,
        folder=str(run.paths.folder),
        state=state,
        sentence=run.quoted(_sentence(run, state, stages, failed, failure)),
        stages=tuple(stages),
        ranks=tuple(
            RankStatus(log.rank, log.host, log.state, log.instance) for log in servers if log.rank is not None
        ),
        instances=tuple(instances),
        endpoint=endpoint,
        exit_code=_exit_code(state, failed, failure),
        causes=tuple(causes),
        use=run_use(run, stages),
        bad_nodes=run.bad_nodes,
        failed_jobs=tuple(_failed_jobs(run)),
        front_restarts=tuple(restarts),
        gateway_failure=run.quoted(str(failed_gateways[-1])) if failed_gateways else None,
        clients=clients_of(run.paths),
        evaluation=read_evaluation(run.paths.evaluation()),
    )


def run_use(run: RunSnapshot, stages: Sequence[StageStatus]) -> RunUse:
    """Return what the stages of a run, and the jobs that ran them before, have used together."""
    energies = [stage.energy_j for stage in stages if stage.energy_j is not None]
    hours = [stage.gpu_hours for stage in stages if stage.gpu_hours is not None]
    earlier = sum(_earlier_gpu_hours(run, {stage.stage: stage.times.started_at for stage in stages}))
    gpus = {gpu["uuid"]: gpu for step in run.serve_steps for rank in run.ranks(step) for gpu in rank.gpus}
    is_measured = bool(gpus) and all(gpu["total_s"] for gpu in gpus.values())
    return RunUse(
        gpu_hours=sum(hours) + earlier if hours or earlier else None,
        energy_j=sum(energies) if energies else None,
        server_mean_w=sum(it["total_j"] / it["total_s"] for it in gpus.values()) if is_measured else None,
        server_peak_w=sum(it["total_peak_w"] for it in gpus.values()) if is_measured else None,
    )


def _earlier_gpu_hours(run: RunSnapshot, started: Mapping[str, float | None]) -> Iterator[float]:
    """Yield the GPU-hours of the jobs before the present ones (``resume``, ``serve.renew``).

    Each counts up to its last event. ``started``: when the present job of each stage started, if it has.
    """
    snapshots = [run]
    with suppress(OSError):
        snapshots += [RunSnapshot(RunPaths(attempt)) for attempt in run.paths.attempts.iterdir()]
    for snapshot in snapshots:
        for stage, gpus in run.planned_gpus.items():
            spans: list[tuple[float, float]] = []
            for event in snapshot.events(stage):
                if event.name == "stage_begin":
                    spans.append((event.time, event.time))
                elif spans:
                    spans[-1] = (spans[-1][0], event.time)
            # Slurm's times have whole seconds: the next job of a renewed server begins in the same one.
            before = (started.get(stage) or 0.0) + 1 if snapshot is run else math.inf
            for begin, end in spans:
                if end < before:
                    yield max(0.0, end - begin) / 3600 * gpus


def state_of(run: RunSnapshot, stages: list[StageStatus]) -> RunState:
    """Return the state of a run with these stages."""
    names = {stage.state for stage in stages}
    if run.submission is None and names == {NOT_SUBMITTED.name}:
        return RunState.RENDERED
    serves = any(it.stage == "serve" and it.state == "RUNNING" for it in stages) and run.endpoint is not None
    if serves and run.plan is not None and not run.plan.stops_server:
        return RunState.SERVING
    # Without a stage nothing is known, and nothing can have completed.
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
    """Return whether every stage has ended; after a failure the other stages need a moment more.

    A run with a lost job is never settled: accounting may only be late.
    """
    return state.final and state is not RunState.LOST and all(stage.final for stage in stages)


def _lost_server(run: RunSnapshot, stages: list[StageStatus]) -> StageStatus | None:
    """Return the serve stage if its server is lost, or has failed, and Slurm's state of the job hides it.

    For minutes Slurm waits for a node that does not answer, and shows the job as running or completing; a job
    that was requeued is pending again.
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
        given_up = not any(it.get("state") in ("starting", "restarting") for it in run.instances or ())
    if not given_up:
        return None
    now = "; Slurm does not answer now" if unanswered else ", and Slurm has not ended its job yet"
    return replace(serve, sentence=f"has lost its server{now}")


def _failure(run: RunSnapshot, failed: StageStatus) -> StageFailure:
    """Return what the run's own files show of the failure of a stage."""
    from trtllm_hpc.runs.causes import StageFailure

    stage, companion, serve = failed.stage, last_mark(run, "companion"), last_mark(run, "serve")
    if stage == "serve" and companion is not None and serve is not None:
        # The companion ran in this job's allocation, and the job ended with its exit code.
        inside = companion.data.get("job_id") == serve.data.get("job_id")
        if inside and companion.data.get("exit_code") == failed.exit_code:
            stage = "companion"
    by_a_rank = stage == "serve" and failed.state in _CAUSED_BY_A_RANK
    first = first_failure(run) if by_a_rank else None
    recorded = [event.data for event in of_last_job(run.events(stage)) if "reason" in event.data]
    last = recorded[-1] if recorded else {}
    reported = str(last["reason"]) if last else None
    of_job = (failed.state, failed.exit_signal, failed.job_id)
    return StageFailure(stage, *of_job, first, reported, last.get("next"))


def _failed_jobs(run: RunSnapshot) -> Iterator[FailedJob]:
    """Yield the earlier jobs that failed, with the cause in the log of the rank that died first."""
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
    """Return the stages that did not succeed, without a companion that failed as its server was cancelled."""
    failed = [stage for stage in stages if stage.final and not stage.ok]
    for serve in failed:
        cancelled_at = serve.times.ended_at
        if serve.stage == "serve" and serve.state == "CANCELLED" and serve.times.started_at and cancelled_at:
            ended = {it.stage: it.times.ended_at or cancelled_at for it in failed}
            ended |= {it.stage: 0.0 for it in failed if it.state == INTERRUPTED.name}
            return [it for it in failed if it.stage != "companion" or ended[it.stage] < cancelled_at]
    return failed


def _sentence(
    run: RunSnapshot,
    state: RunState,
    stages: list[StageStatus],
    failed: StageStatus | None,
    failure: StageFailure | None,
) -> str:
    if not stages:
        return f"nothing is known about its jobs: {run.paths.plan} is gone or damaged"
    if failed is None or failure is None:
        sentence = _progress_sentence(run, state, stages) + _troubles(run, stages)
        if not state.final and state is not RunState.RENDERED:
            with suppress(OSError):  # the folder is gone, which the sentence says elsewhere
                # A living run whose disk is full cannot write so itself.
                space = disk_space(os.uname().nodename, "the run folder", run.paths.folder)
                sentence += "" if space is None else f"; {space.message}"
    else:
        sentence = "the server goes on; " if state is RunState.SERVING else ""
        sentence += f"stage {failed.stage} {failed.sentence}"
        why = failure.reported or (failure.first.sentence if failure.first is not None else "")
        if not why and failed.state == "FAILED":
            why = stage_error(run, failure.stage) or ""
        sentence += f"; {why}" if why else ""
    earlier = 0 if run.renewal is None else len(run.renewal.failed)
    before = f"; {earlier} earlier {'jobs have' if earlier > 1 else 'job has'} failed" if earlier else ""
    return sentence + before + _damage(run, state)


def _damage(run: RunSnapshot, state: RunState) -> str:
    """Return, to be appended to the sentence, what the run folder lacks, so that less is known of the run."""
    paths = run.paths
    needed = [] if state.final else [paths.runtime, paths.scripts, paths.logs, paths.events, paths.ranks]
    needed += [paths.jobs] * any(event.data.get("submitted") for event in run.all_events)
    lost = ["plan.json"] * (not run.plan) + [file.name for file in needed if stat_of(file) is None]
    records = {"submission": paths.jobs, "endpoint": paths.endpoint}
    unread = {name: file for name, file in records.items() if not getattr(run, name)}  # or not written yet
    lost += [it.name for name, it in unread.items() if stat_of(it) and not getattr(RunSnapshot(paths), name)]
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
    """Return, to be appended to the sentence, how far a running stage is."""
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
    """Return, to be appended to the sentence, what stands still in a living run."""
    found: dict[tuple[str, object], str] = {}
    silent_s = _silent_for_s(run, "serve")
    if silent_s > 4 * BEAT_S and any((it.stage, it.state) == ("serve", "RUNNING") for it in stages):
        found["", ""] = f"no rank has written for {silent_s:.0f} s: the run's file system may stand still"
    for event in () if all(stage.final for stage in stages) else run.all_events:
        if event.name in ("stage_begin", "stage_end"):
            found = {key: why for key, why in found.items() if key[0] != event.stage}
        elif event.name == "instance_end":  # the instance that starts in its place knows nothing of it
            gone = f"serve.{event.data.get('instance')}/"
            found = {key: why for key, why in found.items() if not str(key[1]).startswith(gone)}
        elif event.name == TROUBLE:
            found[event.stage, event.data.get("part")] = event.data.get("why") or ""
    return "".join(f"; {why}" for why in found.values() if why)


def build_step(run: RunSnapshot) -> tuple[int, int, str] | None:
    """Return the build's step, the number of steps and what is being done; ``None`` before the first."""
    steps = [event.data for event in run.events("build") if event.name == "progress"]
    return (int(steps[-1]["step"]), int(steps[-1]["of"]), str(steps[-1]["message"])) if steps else None


def _exit_code(state: RunState, failed: StageStatus | None, failure: StageFailure | None) -> ExitCode:
    """Return the exit code for what failed."""
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
    # With the companion inside its allocation, the serve job ends with the companion's code.
    known |= {ExitCode.CONFIG} if failure.stage != "serve" else set()
    known |= {ExitCode.START} if failed.stage != "serve" else set()
    otherwise = ExitCode.START if failed.stage == "serve" else ExitCode.REQUEST
    return next((code for code in known if code == failed.exit_code), otherwise)
