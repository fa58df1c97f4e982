"""The status of a run, from what Slurm reports and what the jobs wrote."""

from __future__ import annotations

import enum
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trtllm_hpc.errors import ExitCode, SubmissionError
from trtllm_hpc.logs.causes.explain import Finding
from trtllm_hpc.logs.diagnose import RankFailure, first_failure, stage_error
from trtllm_hpc.logs.files import LogFile, list_logs
from trtllm_hpc.logs.state import last_mark
from trtllm_hpc.paths import RunPaths, read_json, read_plan
from trtllm_hpc.runs.accounting import NOTHING, RunUse, earlier_gpu_hours, planned_gpus, with_own_times
from trtllm_hpc.runtime.blame import verdict
from trtllm_hpc.runtime.records import Endpoint, Event, known_fields, rank_records, read_events
from trtllm_hpc.runtime.renewal import Renewal
from trtllm_hpc.runtime.stage import SUBMISSION_TIMEOUT_S
from trtllm_hpc.scheduler.local import is_same_process
from trtllm_hpc.scheduler.reasons import explain_reason
from trtllm_hpc.scheduler.slurm import JobInfo, JobTimes, Slurm
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

_CAUSED_BY_A_RANK = ("FAILED", "OUT_OF_MEMORY", "RUNNING", "COMPLETING")
"""States whose cause is the rank that died first; others (a time limit...) have another cause."""


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
    """The signal that Slurm gives beside the exit code, also for what is none: 53, 125."""
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
    """One instance of the server, as its supervisor told last."""

    instance: int
    state: str
    """``starting``, ``ready``, ``restarting``, ``failed`` or ``ended``."""
    restarts: int
    reason: str | None
    """How it ended the last time."""


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
    """In runs with a door."""
    endpoint: Endpoint | None
    """Where the server answers; ``None`` unless the run serves."""
    exit_code: ExitCode
    """Exit code of ``submit --wait`` when this status is final."""
    causes: tuple[Finding, ...] = ()
    """Of what has failed: why, the likeliest cause first."""
    use: RunUse = NOTHING
    """What it has used."""

    @property
    def settled(self) -> bool:
        """Whether every stage has ended, and the run stays as it is."""
        return is_settled(self.state, self.stages)


def watcher_of(paths: RunPaths) -> JobWatcher:
    """Return a watcher for the cluster that a run was, or would be, submitted to."""
    from trtllm_hpc.scheduler.executor import JobWatcher  # submitit takes 0.1 s to import

    record = read_submission(paths)
    return JobWatcher(Slurm(record.slurm_conf if record else planned(paths, "slurm_conf")))


def run_status(
    paths: RunPaths, watcher: JobWatcher | None = None, *, mode: str = "force", places: bool = False
) -> RunStatus:
    """Return the status of a run; Slurm is queried once at most.

    Args:
        watcher: pass the same one to several calls, so that jobs that have ended, and
            accounting that a site does not have, are not queried again.
        mode: see :meth:`~trtllm_hpc.scheduler.executor.JobWatcher.job_infos`.
        places: ask where pending jobs stand in the queue, too.

    Raises:
        SubmissionError: Slurm does not answer.
    """
    record = read_submission(paths)
    return _whole(paths, stages_of(paths, record, watcher, mode=mode, places=places), record)


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
        if record is None:
            jobs |= _queued_by_hand(paths, jobs, queued)
        following = Renewal.read(paths.renewal)
        if following is not None and int(following.job_id) > int(jobs.get("serve") or 0):
            jobs["serve"] = following.job_id  # it has begun, and not said so yet
        watched = _watched(jobs, following)
        watcher = watcher or watcher_of(paths)
        infos = watcher.job_infos(watched, mode) if watched else {}
        waiting = watcher.waiting() if places and watched else {}
        stages = [_slurm_stage(name, job, infos, events, interrupted) for name, job in jobs.items()]
        if following is not None:
            stages = [_renewed(stage, following, infos, events) for stage in stages]
    gpus = planned_gpus(paths)
    stages = [replace(stage, waiting=waiting.get(stage.job_id or "")) for stage in stages]
    return [_timed(stage, record, events, gpus.get(stage.stage)) for stage in stages]


def watched_jobs(paths: RunPaths, record: SubmissionRecord | None) -> list[str]:
    """Return the ids of the jobs that decide a run's status."""
    return _watched(_job_ids(paths, record, read_events(paths)), Renewal.read(paths.renewal))


def _watched(jobs: Mapping[str, str | None], following: Renewal | None) -> list[str]:
    return [job for job in (*jobs.values(), following and following.next_job_id) if job]


def unanswered_status(paths: RunPaths) -> RunStatus:
    """Return what is known of a submitted run before Slurm has answered for the first time."""
    record = read_submission(paths)
    jobs = _job_ids(paths, record, read_events(paths))
    return _whole(paths, [_in_state(name, UNANSWERED, job) for name, job in jobs.items()], record)


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
    name: str, job_id: str | None, infos: dict[str, JobInfo], events: list[Event], interrupted: bool
) -> StageStatus:
    if job_id is None:
        return _in_state(name, INTERRUPTED if interrupted else NOT_SUBMITTED)
    last = last_mark(events, name) or _NO_EVENT
    info = infos.get(job_id)
    if info is None:
        # Slurm does not know it: its own last event decides.
        return _ended(name, job_id, last) if last.name == "stage_end" else _in_state(name, LOST, job_id)
    code = info.exit_code
    if info.state.final and last.name == "stage_end" and last.data.get("job_id") == job_id:
        code = int(last.data["exit_code"])  # sacct shows 137 as 9
    note = f": {explain_reason(info.reason, job_id, info.unavailable)}" if info.reason else ""
    if info.exit_signal and not info.state.ok:
        note += _signal_note(info)
    elif info.state.name == "FAILED":
        note += _exit_code_note(code)
    stage = _in_state(name, info.state, job_id, note, info.nodes, code)
    return replace(
        stage, exit_signal=info.exit_signal, times=info.times, gpus=info.gpus, energy_j=info.energy_j
    )


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
    stage: StageStatus, renewal: Renewal, infos: dict[str, JobInfo], events: list[Event]
) -> StageStatus:
    """Return the status of a serve stage that another job follows: that job's, once this one has ended."""
    waiting = renewal.next_job_id
    if stage.stage != "serve" or waiting is None or stage.job_id != renewal.job_id:
        return stage
    if stage.final and waiting in infos and not infos[waiting].state.final:
        stage = _slurm_stage("serve", waiting, infos, events, interrupted=False)
        return replace(stage, sentence=f"{stage.sentence}; job {renewal.job_id} before it has ended")
    if stage.final:
        return stage
    sentence = f"{stage.sentence}; job {waiting} waits to follow it"
    return replace(stage, sentence=sentence, next_job_id=waiting)


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


def _whole(paths: RunPaths, stages: list[StageStatus], record: SubmissionRecord | None) -> RunStatus:
    state, endpoint = state_of(paths, stages, record)
    # A server that is kept running outlives a companion that has failed.
    failed = _first_failed(stages) if state.final or state is RunState.SERVING else None
    if state is RunState.FAILED:
        failed = _lost_server(paths, stages) or failed
    servers = list_logs(paths, "serve")
    first = None if failed is None else _rank_failure(paths, failed)
    sentence = _sentence(paths, state, stages, failed, first)
    code = _exit_code(state, failed, paths)
    causes: tuple[Finding, ...] = ()
    if failed is not None and state in (RunState.FAILED, RunState.SERVING):
        causes = _causes(paths, failed, first, servers)
    folder = str(paths.folder)
    return RunStatus(
        paths.run_id,
        folder,
        state,
        sentence,
        tuple(stages),
        _ranks(servers),
        _instances(paths, stages),
        endpoint,
        code,
        causes,
        run_use(paths, stages),
    )


def run_use(paths: RunPaths, stages: Iterable[StageStatus]) -> RunUse:
    """Return what the stages of a run, and the jobs that ran them before, have used together."""
    known = list(stages)
    submitted = [it.times.submitted_at for it in known if it.times.submitted_at is not None]
    starts = [it.times.started_at for it in known if it.times.started_at is not None]
    energies = [it.energy_j for it in known if it.energy_j is not None]
    hours = [it.gpu_hours for it in known if it.gpu_hours is not None]
    earlier = earlier_gpu_hours(paths, {it.stage: it.times.started_at for it in known})
    return RunUse(
        waited_s=min(starts) - min(submitted) if starts and submitted else None,
        gpu_hours=sum(hours) + earlier if hours or earlier else None,
        energy_j=sum(energies) if energies else None,
    )


def state_of(
    paths: RunPaths, stages: list[StageStatus], record: SubmissionRecord | None
) -> tuple[RunState, Endpoint | None]:
    """Return the state of a run with these stages, and where its server answers."""
    endpoint = Endpoint.read(paths.endpoint)
    keeps_serving = read_plan(paths).get("stops_server") is False
    is_lost = _lost_server(paths, stages) is not None
    state = _run_state(stages, record, endpoint, keeps_serving=keeps_serving, lost_server=is_lost)
    return state, None if state.final else endpoint  # a killed leader leaves its file behind


def is_settled(state: RunState, stages: Iterable[StageStatus]) -> bool:
    """Return whether every stage has ended; after a failure the other stages need a moment more.

    A run with a lost job is never settled: accounting may only be late.
    """
    return state.final and state is not RunState.LOST and all(stage.final for stage in stages)


def _lost_server(paths: RunPaths, stages: list[StageStatus]) -> StageStatus | None:
    """Return the serve stage if its server is lost, or has failed, and Slurm does not know that yet.

    For minutes Slurm waits for a node that does not answer, and shows the job as running or completing.
    """
    serve = next((stage for stage in stages if stage.stage == "serve"), None)
    if serve is None or serve.state not in ("RUNNING", "COMPLETING"):
        return None
    events = read_events(paths, "serve")
    last = last_mark(events, "serve")
    if last is not None and last.name == "stage_end" and last.data.get("job_id") == serve.job_id:
        code = int(last.data.get("exit_code", 1))
        if code in (0, 143):
            return None
        sentence = f"has failed (exit code {code}), and Slurm has not ended its job yet"
        return replace(serve, sentence=sentence, exit_code=code)
    begun_at = 0.0 if last is None else last.time
    given_up = any(event.name == "failed" and event.time >= begun_at for event in events)
    # Behind a door the supervisor decides: it may start an instance again.
    if not given_up and (paths.instances.exists() or verdict(rank_records(paths, "serve")) is None):
        return None
    return replace(serve, sentence="has lost its server, and Slurm has not ended its job yet")


def _causes(
    paths: RunPaths, failed: StageStatus, first: RankFailure | None, servers: list[LogFile]
) -> tuple[Finding, ...]:
    from trtllm_hpc.runs.causes import causes_of  # only failures need the table of causes

    by_companion = failed.stage == "serve" and _companion_failed_in(paths, failed)
    stage = "companion" if by_companion else failed.stage
    first = None if by_companion else first
    return causes_of(
        paths,
        stage,
        state=failed.state,
        exit_signal=failed.exit_signal,
        first=first,
        reported=_reported(paths, stage) or (None if first is None else first.told),
        servers=servers,
    )


def _rank_failure(paths: RunPaths, failed: StageStatus) -> RankFailure | None:
    by_a_rank = failed.stage == "serve" and failed.state in _CAUSED_BY_A_RANK
    return first_failure(paths, over=True) if by_a_rank else None


def _reported(paths: RunPaths, stage: str) -> str | None:
    """Return the reason that a stage's job has given itself."""
    reasons = [event for event in read_events(paths, stage) if "reason" in event.data]
    return str(reasons[-1].data["reason"]) if reasons else None


def _ranks(logs: list[LogFile]) -> tuple[RankStatus, ...]:
    return tuple(
        RankStatus(log.rank, log.host, log.state, log.instance) for log in logs if log.rank is not None
    )


def _instances(paths: RunPaths, stages: list[StageStatus]) -> tuple[InstanceStatus, ...]:
    """Return what the supervisor told last; after the stage's end none can still serve."""
    try:
        told = read_json(paths.instances) or []
    except (ValueError, OSError):
        return ()
    instances = (InstanceStatus(**known_fields(InstanceStatus, one)) for one in told)
    if any(stage.stage == "serve" and stage.final for stage in stages):
        instances = (one if one.state == "failed" else replace(one, state="ended") for one in instances)
    return tuple(instances)


def _run_state(
    stages: list[StageStatus],
    record: SubmissionRecord | None,
    endpoint: Endpoint | None,
    *,
    keeps_serving: bool,
    lost_server: bool,
) -> RunState:
    names = {stage.state for stage in stages}
    if record is None and names == {NOT_SUBMITTED.name}:
        return RunState.RENDERED
    serves = endpoint is not None and any(it.stage == "serve" and it.state == "RUNNING" for it in stages)
    if serves and keeps_serving:
        return RunState.SERVING
    # Without a stage nothing is known, and nothing can have completed.
    if not stages or any(stage.state == LOST.name for stage in stages):
        return RunState.LOST
    if any(stage.final and not stage.ok and stage.state != "CANCELLED" for stage in stages):
        return RunState.FAILED
    if lost_server:
        return RunState.FAILED
    if "CANCELLED" in names:
        return RunState.CANCELLED
    if all(stage.ok for stage in stages):
        return RunState.COMPLETED
    if serves:
        return RunState.SERVING
    return RunState.RUNNING if names & {"RUNNING", "COMPLETING", "COMPLETED"} else RunState.PENDING


def _first_failed(stages: list[StageStatus]) -> StageStatus | None:
    """Return the first stage that failed by itself, else the first that did not succeed."""
    failed = [stage for stage in stages if stage.final and not stage.ok]
    return next((stage for stage in failed if stage.state != "CANCELLED"), failed[0] if failed else None)


def _sentence(
    paths: RunPaths,
    state: RunState,
    stages: list[StageStatus],
    failed: StageStatus | None,
    first: RankFailure | None,
) -> str:
    if not stages:
        return f"nothing is known about its jobs: {paths.plan} is gone or damaged"
    if failed is None:
        return _progress_sentence(state, stages) + _build_progress(paths, stages)
    parts = [f"stage {failed.stage} {failed.sentence}"]
    if state is RunState.SERVING:
        parts.insert(0, "the server goes on")
    if failed.stage == "serve" and _companion_failed_in(paths, failed):
        return "; ".join(filter(None, [*parts, stage_error(paths, "companion")]))
    if reported := _reported(paths, failed.stage):
        parts.append(reported)
    elif first is not None:
        parts.append(first.sentence)
    elif failed.state == "FAILED" and (line := stage_error(paths, failed.stage)):
        parts.append(line)
    return "; ".join(parts)


def _companion_failed_in(paths: RunPaths, failed: StageStatus) -> bool:
    """Return whether the companion ran in this job's allocation, and the job ended with its exit code."""
    companion, serve = (last_mark(read_events(paths, stage), stage) for stage in ("companion", "serve"))
    if companion is None or serve is None or companion.data.get("job_id") != serve.data.get("job_id"):
        return False
    return companion.data.get("exit_code") == failed.exit_code


def _progress_sentence(state: RunState, stages: list[StageStatus]) -> str:
    if state is RunState.RENDERED:
        return "not submitted"
    if state is RunState.COMPLETED:
        return "every stage has completed"
    busy = next((stage for stage in stages if not stage.final), None)
    return f"stage {busy.stage} {busy.sentence}" if busy else state.value


def _build_progress(paths: RunPaths, stages: list[StageStatus]) -> str:
    """Return the latest progress of a running build, to be appended to the sentence."""
    if not any(stage.stage == "build" and stage.state == "RUNNING" for stage in stages):
        return ""
    step = build_step(paths)
    return "" if step is None else f", step {step[0]} of {step[1]}: {step[2]}"


def build_step(paths: RunPaths) -> tuple[int, int, str] | None:
    """Return the build's step, the number of steps and what is being done; ``None`` before the first."""
    steps = [event.data for event in read_events(paths, "build") if event.name == "progress"]
    return (int(steps[-1]["step"]), int(steps[-1]["of"]), str(steps[-1]["message"])) if steps else None


def _exit_code(state: RunState, failed: StageStatus | None, paths: RunPaths) -> ExitCode:
    """Return the exit code for what failed."""
    if state is RunState.LOST or (failed and failed.state == LOST.name):
        return ExitCode.LOST
    if state is RunState.CANCELLED or (failed and failed.state == "CANCELLED"):
        return ExitCode.CANCELLED
    if failed is None:
        return ExitCode.OK
    if failed.state == INTERRUPTED.name or failed.exit_code == ExitCode.SUBMISSION:
        return ExitCode.SUBMISSION
    if failed.stage == "build":
        return ExitCode.BUILD
    if failed.stage == "serve":
        # With the companion inside its allocation, the serve job ends with the companion's code.
        inside = {ExitCode.READINESS, ExitCode.REQUEST, ExitCode.MEASUREMENT}
        if _companion_failed_in(paths, failed):
            inside.add(ExitCode.CONFIG)
        return next((code for code in inside if code == failed.exit_code), ExitCode.START)
    known = {ExitCode.CONFIG, ExitCode.START, ExitCode.READINESS, ExitCode.REQUEST, ExitCode.MEASUREMENT}
    return next((code for code in known if code == failed.exit_code), ExitCode.REQUEST)
