"""The status of a run, worked out from its stages and from the files that its jobs write."""

from __future__ import annotations

import enum
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from trtllm_hpc.config.hub import record_of
from trtllm_hpc.errors import ExitCode, SubmissionError
from trtllm_hpc.evaluation.scores import EvaluationSummary, read_evaluation
from trtllm_hpc.logs.causes.explain import Finding
from trtllm_hpc.logs.causes.table import Degree
from trtllm_hpc.logs.diagnose import begin_reading_stage, first_failure, stage_error
from trtllm_hpc.logs.files import last_mark, list_logs
from trtllm_hpc.logs.loading import load_line, loading_now
from trtllm_hpc.logs.reading import stat_of
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import RunPaths, call_name, remove_abandoned
from trtllm_hpc.runs.accounting import NOTHING, RunUse, run_use
from trtllm_hpc.runs.guests import ProxyClient, clients_of
from trtllm_hpc.runs.stages import StageFailure, StageStatus, silent_for_s, stages_of, unanswered_stages
from trtllm_hpc.runtime.bad_nodes import BadNode
from trtllm_hpc.runtime.checks import disk_space
from trtllm_hpc.runtime.guests import IDLE
from trtllm_hpc.runtime.heartbeat import BEAT_S, TROUBLE
from trtllm_hpc.runtime.lock import UNLIKE
from trtllm_hpc.runtime.records import Endpoint, Event, known_fields, of_last_job
from trtllm_hpc.runtime.renewal import FailedJob
from trtllm_hpc.scheduler.slurm import Slurm
from trtllm_hpc.scheduler.states import INTERRUPTED, LOST, NOT_SUBMITTED, UNANSWERED
from trtllm_hpc.scheduler.watcher import JobWatcher

_CAUSED_BY_A_RANK = ("FAILED", "OUT_OF_MEMORY", "RUNNING", "COMPLETING", UNANSWERED.name)
"""States whose cause is the rank that died first; others (a time limit...) have another cause."""

_PATIENCE_S = 10.0
"""For one answer of Slurm."""


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
class RankStatus:
    """One rank of the server, from its own record."""

    rank: int
    host: str | None
    state: str
    """``running``, ``ended 0``, ``stopped by companion``... in a few words."""
    instance: int | None = None
    """``None`` where there is only one."""
    load_s: dict[str, float] = field(default_factory=dict)
    """Seconds of ``weights``, ``compile``, ``autotune``, ``kv_cache``, ``warm_up``, as its log shows them."""


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
    use: RunUse = NOTHING
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
    unlike: tuple[str, ...] = ()
    """What the job has found to be other than in the run that this one repeats."""
    load: str = ""
    """How long the phases of the server's start took; empty if no log shows them."""
    evaluation: EvaluationSummary | None = None
    """Scores of the companion's evaluation, once it has finished."""

    @property
    def settled(self) -> bool:
        """Whether every stage has ended, and the run stays as it is."""
        return is_settled(self.state, self.stages)


def run_status(
    run: RunPaths | RunSnapshot,
    watcher: JobWatcher | None = None,
    *,
    mode: str = "force",
    limits: bool = False,
) -> RunStatus:
    """Return the status of a run; Slurm is queried once at most.

    Once every job has ended, temporary files that killed processes left in the run folder are removed.
    Raises SubmissionError if Slurm does not answer.

    Args:
        run: a snapshot, if the caller needs more of the run folder than its status.
        watcher: pass the same one to several calls, so that jobs that have ended, and
            accounting that a site does not have, are not queried again.
        mode: see :meth:`~trtllm_hpc.scheduler.watcher.JobWatcher.job_infos`.
        limits: ask which limits hold pending jobs, too.
    """
    run = run if isinstance(run, RunSnapshot) else RunSnapshot(run)
    status = status_of(run, stages_of(run, watcher, mode=mode, limits=limits))
    if status.settled:
        remove_abandoned(run.paths.folder)
    return status


def status_or_files(run: RunPaths) -> tuple[RunStatus, SubmissionError | None]:
    """Return the status of a run; where Slurm does not answer within 10 s, by the run's own files.

    Slurm's error comes with it. Raises SubmissionError if Slurm cannot be asked at all.
    """
    snapshot = RunSnapshot(run)
    try:
        watcher = JobWatcher(Slurm(snapshot.slurm_conf, timeout_s=_PATIENCE_S))
        return run_status(snapshot, watcher, limits=True), None
    except SubmissionError as error:
        if not error.transient or snapshot.submission is None:
            raise
        return unanswered_status(RunSnapshot(run)), error


def unanswered_status(run: RunSnapshot) -> RunStatus:
    """Return what a run's own files show of it, while Slurm does not answer."""
    return status_of(run, unanswered_stages(run))


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
    has_causes = state in (RunState.FAILED, RunState.SERVING)
    if failed is not None and has_causes:
        begin_reading_stage(run, failed.stage)
    servers = list_logs(run, "serve")
    failure = None if failed is None else _failure(run, failed)
    causes: tuple[Finding, ...] = ()
    if failure is not None and has_causes:
        from trtllm_hpc.runs.causes import causes_of  # only failures need the table of causes

        name, job = call_name(run.paths), failure.status.job_id
        causes = tuple(it.naming(name, job).shown(run.quoted) for it in causes_of(run, failure, servers))
    served = [] if endpoint is None else of_last_job(run.events("serve"))
    gateway = [run.quoted(str(it.data.get("why", "it has ended"))) for it in _named(served, "gateway_failed")]
    return RunStatus(
        run_id=run.paths.run_id,
        folder=str(run.paths.folder),
        state=state,
        sentence=run.quoted(_sentence(run, state, stages, failure)),
        stages=tuple(stages),
        ranks=tuple(
            RankStatus(log.rank, log.host, log.state, log.instance, log.load_s)
            for log in servers
            if log.rank is not None
        ),
        instances=_instances(run, stages),
        endpoint=endpoint,
        exit_code=_exit_code(state, failure),
        causes=causes,
        use=run_use(run, stages),
        bad_nodes=run.bad_nodes,
        failed_jobs=_failed_jobs(run),
        front_restarts=tuple(run.quoted(str(it.data.get("why"))) for it in _named(served, "front_restarted")),
        gateway_failure=gateway[-1] if gateway else None,
        clients=clients_of(run.paths),
        unlike=tuple({str(it.data.get("warning")): None for it in _named(run.events("serve"), UNLIKE)}),
        load=load_line(run),
        evaluation=read_evaluation(run.paths.evaluation()),
    )


def _named(events: Iterable[Event], name: str) -> Iterator[Event]:
    return (event for event in events if event.name == name)


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
    if any(stage.state != "CANCELLED" for stage in _failures(stages)):
        return RunState.FAILED
    if _lost_server(run, stages) is not None:
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
    if serve.requeued and any(it.stage == "companion" and it.final and not it.ok for it in stages):
        return replace(serve, sentence="was put back into the queue by Slurm, which ended its server")
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
    return StageFailure(failed, stage, first, str(last["reason"]) if last else None, last.get("next"))


def _failed_jobs(run: RunSnapshot) -> tuple[FailedJob, ...]:
    """Return the earlier jobs that failed, with the cause in the log of the rank that died first."""
    found = []
    for record in [] if run.renewal is None else run.renewal.failed:
        job = FailedJob(**known_fields(FailedJob, record))
        attempt = RunSnapshot(RunPaths(run.paths.attempts / str(job.attempt)))
        attempt.plan = run.plan
        first = first_failure(attempt)
        cause = None if first is None else first.log.late_cause
        why = job.why
        if cause is not None and cause.degree is not Degree.FIRST_ERROR:
            why += f": {cause.sentence.rstrip('.')}"
        found.append(replace(job, why=run.quoted(why)))
    return tuple(found)


def _instances(run: RunSnapshot, stages: list[StageStatus]) -> tuple[InstanceStatus, ...]:
    """Return the instances as last recorded; after the end of the stage none can still serve."""
    instances = [InstanceStatus(**known_fields(InstanceStatus, it)) for it in run.instances or ()]
    instances = [it if it.reason is None else replace(it, reason=run.quoted(it.reason)) for it in instances]
    if any(stage.stage == "serve" and stage.final for stage in stages):
        instances = [it if it.state == "failed" else replace(it, state="ended") for it in instances]
    return tuple(instances)


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
    run: RunSnapshot, state: RunState, stages: list[StageStatus], failure: StageFailure | None
) -> str:
    if not stages:
        return f"nothing is known about its jobs: {run.paths.plan} is gone or damaged"
    if failure is None:
        sentence = _progress_sentence(run, state, stages) + _troubles(run, stages)
        if not state.final and state is not RunState.RENDERED:
            with suppress(OSError):  # the folder is gone, which the sentence says elsewhere
                # A living run whose disk is full cannot write so itself.
                space = disk_space(os.uname().nodename, "the run folder", run.paths.folder)
                sentence += "" if space is None else f"; {space.message}"
    else:
        failed = failure.status
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
    show = {"build": _building, "serve": _loading, "download": _downloading}.get(busy.stage)
    progress = show(run) if show is not None and busy.state == "RUNNING" else ""
    if state is RunState.SERVING:
        marks = [event for event in run.events("serve") if event.name in (IDLE, "ready")]
        if marks and (ends_at := marks[-1].data.get("ends_at")) is not None:
            minutes = max(1, math.ceil((ends_at - time.time()) / 60))
            progress += f"; nobody asks: the server ends in {minutes} min (serve.idle_minutes), "
            progress += "unless a request comes"
    return f"stage {busy.stage} {busy.sentence}{progress}"


def _building(run: RunSnapshot) -> str:
    step = build_step(run)
    return "" if step is None else f", step {step[0]} of {step[1]}: {step[2]}"


def _downloading(run: RunSnapshot) -> str:
    model = None if run.plan is None else run.plan.model
    record = record_of(model)
    return f"; {record.downloaded(Path(model))}" if model is not None and record is not None else ""


def _loading(run: RunSnapshot) -> str:
    """Return, to be appended to the sentence, how far server and copies of weights are."""
    nodes = run.ranks("staging")
    busy = sum(node.ended_at is None for node in nodes)
    copied, total = (sum(node.details[key] for node in nodes) / 2**30 for key in ("copied", "bytes"))
    speed = copied / max([1e-3, *(node.details["seconds"] for node in nodes)])
    so_far = f"{copied:.2f} of {total:.2f} GiB, {speed:.2f} GiB/s"
    copies = f"; {busy} of {len(nodes)} nodes still copy weights to their disks: {so_far}" if busy else ""
    return f"{loading_now(run)}{copies}"


def _troubles(run: RunSnapshot, stages: Sequence[StageStatus]) -> str:
    """Return, to be appended to the sentence, what stands still in a living run."""
    found: dict[tuple[str, object], str] = {}
    silent_s = silent_for_s(run, "serve")
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


def _exit_code(state: RunState, failure: StageFailure | None) -> ExitCode:
    """Return the exit code for what failed."""
    failed = None if failure is None else failure.status
    if state is RunState.LOST or (failed and failed.state == LOST.name):
        return ExitCode.LOST
    if state is RunState.CANCELLED or (failed and failed.state == "CANCELLED"):
        return ExitCode.CANCELLED
    if failure is None or failed is None:
        return ExitCode.OK
    if failed.state == INTERRUPTED.name or failed.exit_code == ExitCode.SUBMISSION:
        return ExitCode.SUBMISSION
    if failed.stage == "build":
        return ExitCode.BUILD
    known = {ExitCode.CONFIG, ExitCode.START, ExitCode.READINESS, ExitCode.REQUEST}
    known |= {ExitCode.MEASUREMENT, ExitCode.ACCURACY}
    if failed.stage == "serve":
        # With the companion inside its allocation, the serve job ends with the companion's code.
        inside = known - {ExitCode.START, *([] if failure.stage == "companion" else [ExitCode.CONFIG])}
        return next((code for code in inside if code == failed.exit_code), ExitCode.START)
    return next((code for code in known if code == failed.exit_code), ExitCode.REQUEST)
