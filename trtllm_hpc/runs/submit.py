"""Submitting a run, all its stages or none; again, those that have failed; and cancelling it in any state."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.files import read_cluster, read_spec
from trtllm_hpc.errors import SubmissionError, UnclearSubmission
from trtllm_hpc.logs.files import stage_of
from trtllm_hpc.logs.snapshot import RunSnapshot, readable_plan
from trtllm_hpc.paths import RunPaths, call_name, locked
from trtllm_hpc.runs.status import RunStatus, queued_jobs, run_status
from trtllm_hpc.runtime.bad_nodes import Pool, bad_hosts, exclude, exclude_option
from trtllm_hpc.runtime.plan_record import Stage
from trtllm_hpc.runtime.process import start_ticks
from trtllm_hpc.runtime.records import TOKEN_VARIABLE, StopRequest, add_event, try_event
from trtllm_hpc.runtime.stop import CANCEL, request_stop
from trtllm_hpc.scheduler.job_info import RunJob
from trtllm_hpc.scheduler.local import StageScript, cancel_local, detached
from trtllm_hpc.scheduler.slurm import COMMANDS, JobWatcher, Slurm, is_installed
from trtllm_hpc.scheduler.submission_record import StageJob, SubmissionRecord

if TYPE_CHECKING:
    from submitit.core.core import Executor, Job

_SETTLE_TIMEOUT_S = 60.0
_SUBMISSION_TIMEOUT_S = 150.0
"""A submission sees the request to stop after the sbatch that it waits for, and then cancels its jobs."""
_POLL_S = 0.5
_REASON = "the run was cancelled"


@contextmanager
def sole_command(paths: RunPaths) -> Iterator[None]:
    """Keep other commands from changing a run meanwhile; raises SubmissionError if another one is at it."""
    message = f"Another command submits, cancels or removes run {paths.run_id} right now."
    with locked(paths.commands_lock, SubmissionError(message, hint=f"trtllm-hpc status {call_name(paths)}")):
        yield


def submit_stages(
    paths: RunPaths,
    *,
    stages: Sequence[Stage] | None = None,
    completed: Mapping[str, StageJob] | None = None,
    lane: int | None = None,
    conditions: tuple[str, ...] = (),
) -> SubmissionRecord:
    """Submit the scripts of a written run, in order; all of them or none. The caller is its sole command.

    On any failure, interruption or ``cancel`` the jobs submitted so far are cancelled. If this process is
    killed, they end by themselves: each first waits for the record to be complete (``runtime.stage``).

    Args:
        stages: what is left to do of the run; by default all.
        completed: jobs of an earlier submission that have done their stages.
        lane: of a variant of a sweep; those of one lane run one after another.
        conditions: dependencies of the first job, as sbatch takes them: ``afterany:17``.

    Raises SubmissionError if Slurm refused a script, this machine cannot submit to the cluster, or the run
    was cancelled; ConfigError if another version of this package wrote the run.
    """
    cluster = read_cluster(paths.cluster)
    require_scheduler(cluster)
    is_local = cluster.scheduler == "local"
    stages = readable_plan(paths).stages if stages is None else stages
    record = SubmissionRecord(cluster.scheduler, lane=lane)
    record.slurm_conf, record.slurm_cluster = cluster.controller
    record.stages.update(completed or {})
    jobs: list[Job[Any]] = []
    try:
        with _interruptible() as held:
            record.write(paths)
            if is_local:
                from submitit import LocalExecutor

                # Each stage gets a controller process that outlives this one, and waits for those before it.
                executor: Executor = LocalExecutor(paths.submitit)
                minutes = sum(stage.first.minutes for stage in stages)
                given = {"timeout_min": minutes, "gpus_per_node": cluster.gpus_per_node}
                executor.update_parameters(**given, stderr_to_stdout=True)
            else:
                from trtllm_hpc.scheduler.executor import RenderedScriptExecutor

                executor = RenderedScriptExecutor(paths.folder, *cluster.controller)
            for stage in stages:
                refuse_cancelled(paths)
                after = tuple((it.kind, it.stage) for it in stage.after)
                # Of a run that is resumed: its last server may have ended because of a node.
                excluded = exclude_option(paths) if stage.name == "serve" else ""
                options = (excluded, *(":", excluded) * (len(stage.components) - 1)) if excluded else ()
                token = ((TOKEN_VARIABLE, record.token),)
                dependencies = () if jobs else conditions
                script = StageScript(str(paths.folder), stage.name, after, token, options, dependencies)
                if is_local:
                    COMMANDS.debug("bash %s", shlex.quote(str(script.path)))
                with held():
                    with detached(paths) if is_local else nullcontext():
                        job = executor.submit(script)
                    jobs.append(job)
                    started = start_ticks(int(job.job_id)) if is_local else None
                    record.add(paths, stage.name, job.job_id, started)
            refuse_cancelled(paths)
            record.complete = True
            record.write(paths)
    except BaseException as error:  # above all KeyboardInterrupt: no job may be left behind
        if isinstance(error, UnclearSubmission):
            run = call_name(paths)
            error.hint = f"trtllm-hpc cancel {run}, if Slurm has it now; then trtllm-hpc resume {run}"
        why = {}
        if isinstance(error, SubmissionError):
            why = {"reason": " ".join(error.message.split()), "next": error.hint}
            error.message += f"\nThe rendered scripts are in {paths.scripts}."
        if why or not jobs:
            # There is no job whose state could show that this run is over, or why.
            last = stages[min(len(jobs), len(stages) - 1)]
            try_event(paths, last.name, "submission_interrupted", **why)
        if is_local:
            cancel_local(paths, record)
        else:
            for job in reversed(jobs):
                job.cancel(check=False)
        raise
    return record


def refuse_cancelled(paths: RunPaths) -> None:
    """Raise SubmissionError if a user cancels the run that is being submitted."""
    request = StopRequest.read(paths.stop_request)
    if request is not None and request.by == CANCEL:
        raise SubmissionError(
            f"Run {paths.run_id} was cancelled while it was submitted: its jobs are cancelled.",
            hint=f"trtllm-hpc resume {call_name(paths)} submits it again",
        )


@contextmanager
def _interruptible() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Turn a signal that would end this process into KeyboardInterrupt.

    Yields a context that delays an interruption to its end. The signals are not masked: a child process would
    inherit the mask and could never be stopped.
    """
    pending: str | None = None
    is_held = False

    def on_signal(number: int, _frame: FrameType | None) -> None:
        nonlocal pending
        pending = signal.Signals(number).name
        if not is_held:
            raise KeyboardInterrupt(pending)

    @contextmanager
    def held() -> Iterator[None]:
        nonlocal is_held
        is_held = True
        try:
            yield
        finally:
            is_held = False
        if pending is not None:
            raise KeyboardInterrupt(pending)

    # A signal that is ignored (nohup) stays ignored.
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, on_signal) for number in handled}
    try:
        yield held
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def require_scheduler(cluster: ClusterProfile) -> None:
    """Refuse a submission that is impossible from this machine; raises SubmissionError."""
    if cluster.scheduler == "slurm" and not is_installed():
        raise SubmissionError(
            f"The profile {cluster.name!r} is for a Slurm cluster, but this machine has no sbatch.",
            hint="run this on a login node, or add --cluster local to run it here without Slurm",
        )
    conf = cluster.slurm_conf
    if conf is not None and not os.access(conf, os.R_OK):
        raise SubmissionError(
            f"The profile {cluster.name!r} names {conf}, which cannot be read.",
            hint="trtllm-hpc sandbox up, if this is the sandbox; else set slurm_conf in the profile",
        )


# Submitting again ----------------------------------------------------------------------------


def resume_run(
    paths: RunPaths, *, lane: int | None = None, conditions: tuple[str, ...] = ()
) -> SubmissionRecord:
    """Submit the scripts of the stages that have not ended well, as they are in the run folder.

    A stage that has completed is not repeated. Only a companion needs its server again, and a server that its
    companion stops needs that. A node because of which the server has ended is left out. What the earlier
    attempt wrote about the repeated stages is moved to ``attempts/``, so that nobody takes it for news.
    Raises SubmissionError if a job of the run has not ended, another command is at the run, nothing is left
    to do, or Slurm refused a script; ConfigError if another version of this package wrote the run. ``lane``
    and ``conditions`` are as for :func:`submit_stages`.
    """
    with sole_command(paths):
        stages, completed = prepare_rest(paths)
        return submit_stages(paths, stages=stages, completed=completed, lane=lane, conditions=conditions)


def prepare_rest(paths: RunPaths) -> tuple[list[Stage], dict[str, StageJob]]:
    """Prepare the folder for the stages that have not ended well; return them, and the jobs of the others.

    The caller is the run's sole command. Raises as :func:`resume_run`.
    """
    run = RunSnapshot(paths)
    status = run_status(run)
    for name, why in run.unread.items():
        if name.startswith((paths.jobs.name, paths.events.name)):
            message = f"{name} of run {paths.run_id} cannot be read, so its jobs may live: {why}."
            raise SubmissionError(message, hint=f"mend that, then trtllm-hpc resume {call_name(paths)}")
    live = [f"stage {it.stage} {it.sentence}" for it in status.stages if it.job_id and not it.final]
    live += [f"job {job.job_id} of stage {stage} is in the queue" for stage, job in queued_jobs(run).items()]
    if live:
        name = call_name(paths)
        raise SubmissionError(
            f"Run {paths.run_id} is not over: {live[0]}.",
            hint=f"trtllm-hpc cancel {name}, then trtllm-hpc resume {name}",
        )
    plan, names = readable_plan(paths), {stage.stage for stage in status.stages if not stage.ok}
    if "companion" in names or ("serve" in names and read_spec(paths.spec).stops_server):
        names |= {"serve", "companion"}
    stages = [stage for stage in plan.stages if stage.name in names]
    if not stages:
        words = [str(paths.spec), "--cluster", str(paths.cluster)]
        raise SubmissionError(
            f"Every stage of run {paths.run_id} has completed: there is nothing to resume.",
            hint=f"trtllm-hpc submit {shlex.join(words)} makes a new run of the same job",
        )
    require_scheduler(read_cluster(paths.cluster))
    submitted = run.submission.stages if run.submission else {}
    completed = {stage: job for stage, job in submitted.items() if stage not in names}
    if plan.stage("companion") is None:
        names.add("companion")  # it runs in the allocation of the server, without a job of its own
    serve = plan.stage("serve") if "serve" in names else None
    bad = {} if serve is None else bad_hosts(paths)
    _set_aside(paths, names)
    if serve is not None and bad and plan.scheduler == "slurm":
        # Keep the hosts at fault from the next server, if its partitions have enough others.
        wanted, slurm = Counter[str | None](), Slurm(*plan.controller)
        for component in serve.components:
            wanted[component.partition] += component.nodes
        job_id = next((it.job_id for it in status.stages if it.stage == "serve"), None) or ""
        with suppress(SubmissionError):  # sbatch will say what is wrong
            pools = [Pool.of(slurm.nodes(partition), nodes) for partition, nodes in wanted.items()]
            exclude(paths, bad, job_id=job_id, pools=pools)
    return stages, completed


def _set_aside(paths: RunPaths, stages: Collection[str]) -> None:
    """Move what an earlier attempt wrote about these stages to a folder of its own."""
    aside = paths.new_attempt().folder
    files = [file for folder in (paths.events, paths.logs, paths.ranks) for file in folder.iterdir()]
    # The stage that wrote a file begins its name, e.g. serve.1_0.out.
    files = [file for file in files if stage_of(re.split(r"[._]", file.name)[0]) in stages]
    files += [paths.endpoint, paths.heartbeat, paths.instances, paths.stop_request, paths.benchmark_progress]
    files += [paths.renewal]
    for file in files:
        if file.exists():
            place = aside / file.relative_to(paths.folder)
            place.parent.mkdir(exist_ok=True)
            file.rename(place)
    if paths.jobs.exists():  # it is replaced, and never missing
        shutil.copy2(paths.jobs, aside)


# Cancelling ----------------------------------------------------------------------------------


def cancel_run(paths: RunPaths) -> RunStatus:
    """Cancel every job of a run, wait (bounded) until they have ended, and return the status; idempotent.

    A submission that is going on is stopped, and cancels its own jobs. Raises SubmissionError if Slurm
    refuses the cancellation, or does not answer.
    """
    with ExitStack() as held:
        try:
            held.enter_context(locked(paths.commands_lock, BlockingIOError()))
        except OSError:  # another command has it, or the folder cannot be written
            with suppress(OSError):
                request_stop(paths, by=CANCEL, reason=_REASON)
                lock = locked(paths.commands_lock, BlockingIOError(), wait_s=_SUBMISSION_TIMEOUT_S)
                held.enter_context(lock)
        return _cancel(paths)


def _cancel(paths: RunPaths) -> RunStatus:
    run = RunSnapshot(paths)
    status = run_status(run)
    # The run's own state does not matter: a failed run may still have a stage in the queue.
    busy = [stage for stage in status.stages if not stage.final]
    its = ({it.stage: it.job_id for it in busy}, {it.stage: it.next_job_id for it in busy})
    left = [job for ids in its for job in RunJob.of(paths, run.plan, ids).values()]
    queued = queued_jobs(run)
    if status.settled and not queued:
        return status
    with suppress(OSError):  # even on a full disk the jobs must be cancelled
        request_stop(paths, by=CANCEL, reason=_REASON)  # which also stops a submission that begins now
    if not left and not queued:
        return run_status(paths)
    if run.is_local:
        # Of a run that the user started with bash the process group is not ours to signal:
        # the server obeys the request, and the companion ends with it.
        if run.submission is not None:
            cancel_local(paths, run.submission)
        deadline = time.monotonic() + _SETTLE_TIMEOUT_S
        while not (status := run_status(paths)).settled and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return status
    watcher = JobWatcher(Slurm(*run.controller))
    if run.submission is not None and run.submission.within is not None:
        for stage in busy:  # its sweep's job sees that, and goes on with the next variant
            add_event(paths, stage.stage, "stage_cancelled")
    else:
        watcher.slurm.cancel(left)
        for job in left:  # of a submission that did not come to its end
            if run.submission is not None and job.stage not in run.submission.stages:
                with suppress(OSError):
                    run.submission.add(paths, job.stage, job.job_id)
    deadline, cancelled = time.monotonic() + _SETTLE_TIMEOUT_S, {job.job_id for job in left}
    while True:
        late = time.monotonic() > deadline
        try:
            status, queued = run_status(paths, watcher), queued_jobs(run)
            watcher.slurm.cancel(job for job in queued.values() if job.job_id not in cancelled)
            over = {job.job_id for job in queued.values()}
            cancelled |= over
        except SubmissionError as error:
            if late or not error.transient:
                raise
        else:
            is_over = not any(stage.job_id and not stage.final for stage in status.stages)
            if late and queued and is_over:  # jobs that no stage knows
                message = f"Jobs of the run are still in the queue: {', '.join(sorted(over))}."
                raise SubmissionError(message, hint="squeue --me")
            if late or (is_over and not queued):
                return status
        time.sleep(_POLL_S)


def end_orphans(paths: RunPaths, record: SubmissionRecord) -> None:
    """End the jobs of a run whose folder is gone: no request to stop reaches them, and nobody finds them.

    Raises SubmissionError if Slurm refuses the cancellation, or does not answer.
    """
    if record.scheduler == "local":
        cancel_local(paths, record)
    else:
        jobs = RunJob.of(paths, None, {stage: job.job_id for stage, job in record.stages.items()})
        Slurm(*record.controller).cancel(jobs.values())
