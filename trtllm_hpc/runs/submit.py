"""Submit all stages of a run or none, submit failed stages again (``resume``), and cancel a run."""

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
"""Seconds for another command's submission to end: it obeys a stop request after its current sbatch, and then
cancels its jobs."""
_POLL_S = 0.5
_REASON = "the run was cancelled"


@contextmanager
def sole_command(paths: RunPaths) -> Iterator[None]:
    """Keep other commands from changing a run; raise SubmissionError if another command is changing it."""
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
    """Submit the scripts of a written run in order, all or none. The caller is the run's sole command.

    On any failure, interruption or ``cancel``, the jobs submitted so far are cancelled. If this process is
    killed, the jobs end by themselves, because each job first waits for a complete record
    (``runtime.stage``).

    Args:
        stages: the stages to submit; by default all.
        completed: jobs of an earlier submission whose stages have completed.
        lane: number of the lane of a sweep's variant; variants in the same lane run one after another.
        conditions: dependencies of the first job in sbatch's syntax, e.g. ``afterany:17``.

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

                # Each stage gets a controller process, which outlives this process and waits for earlier
                # stages.
                executor: Executor = LocalExecutor(paths.submitit)
                minutes = sum(stage.first.minutes for stage in stages)
                parameters = {"timeout_min": minutes, "gpus_per_node": cluster.gpus_per_node}
                executor.update_parameters(**parameters, stderr_to_stdout=True)
            else:
                from trtllm_hpc.scheduler.executor import RenderedScriptExecutor

                executor = RenderedScriptExecutor(paths.folder, *cluster.controller)
            for stage in stages:
                refuse_cancelled(paths)
                after = tuple((dependency.kind, dependency.stage) for dependency in stage.after)
                # A resumed run may have bad nodes, which ended its last server.
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
    except BaseException as error:  # KeyboardInterrupt, too: no job may be left behind
        if isinstance(error, UnclearSubmission):
            run = call_name(paths)
            error.hint = f"trtllm-hpc cancel {run}, if Slurm has it now; then trtllm-hpc resume {run}"
        why = {}
        if isinstance(error, SubmissionError):
            why = {"reason": " ".join(error.message.split()), "next": error.hint}
            error.message += f"\nThe rendered scripts are in {paths.scripts}."
        if why or not jobs:
            # Record the end, since no job's state shows that this run is over, or why.
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
    """Raise SubmissionError if the user has cancelled the run that is being submitted."""
    request = StopRequest.read(paths.stop_request)
    if request is not None and request.by == CANCEL:
        raise SubmissionError(
            f"Run {paths.run_id} was cancelled while it was submitted: its jobs are cancelled.",
            hint=f"trtllm-hpc resume {call_name(paths)} submits it again",
        )


@contextmanager
def _interruptible() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Turn a signal that would end this process into KeyboardInterrupt.

    Yields a context manager that delays an interruption until its end. The signals are not masked, because a
    child process would inherit the mask and could never be stopped.
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

    # An ignored signal stays ignored, e.g. SIGHUP under nohup.
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, on_signal) for number in handled}
    try:
        yield held
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def require_scheduler(cluster: ClusterProfile) -> None:
    """Raise SubmissionError if this machine cannot submit to the cluster."""
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
    """Submit the scripts of the stages that have not completed, as they are in the run folder.

    A completed stage is not repeated, with two exceptions: a companion needs its server again, and a server
    that its companion stops needs its companion. Nodes that ended the server are excluded. Logs, records and
    events of the repeated stages move to ``attempts/``. ``lane`` and ``conditions`` are as for
    :func:`submit_stages`.

    Raises SubmissionError if a job of the run has not ended, another command is changing the run, nothing is
    left to do, or Slurm refused a script; ConfigError if another version of this package wrote the run.
    """
    with sole_command(paths):
        stages, completed = prepare_rest(paths)
        return submit_stages(paths, stages=stages, completed=completed, lane=lane, conditions=conditions)


def prepare_rest(paths: RunPaths) -> tuple[list[Stage], dict[str, StageJob]]:
    """Prepare the folder to repeat stages; return the stages to submit, and the jobs of completed stages.

    The caller is the run's sole command. Raises like :func:`resume_run`.
    """
    run = RunSnapshot(paths)
    status = run_status(run)
    for name, why in run.unread.items():
        if name.startswith((paths.jobs.name, paths.events.name)):
            message = f"{name} of run {paths.run_id} cannot be read, so its jobs may still run: {why}."
            raise SubmissionError(message, hint=f"mend that, then trtllm-hpc resume {call_name(paths)}")
    live = [
        f"stage {stage.stage} {stage.sentence}" for stage in status.stages if stage.job_id and not stage.final
    ]
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
        names.add("companion")  # the companion runs in the server's allocation, without a job of its own
    serve = plan.stage("serve") if "serve" in names else None
    bad = {} if serve is None else bad_hosts(paths)
    _set_aside(paths, names)
    if serve is not None and bad and plan.scheduler == "slurm":
        # Exclude the hosts at fault from the next server, if its partitions have enough other nodes.
        wanted, slurm = Counter[str | None](), Slurm(*plan.controller)
        for component in serve.components:
            wanted[component.partition] += component.nodes
        job_id = next((stage.job_id for stage in status.stages if stage.stage == "serve"), None) or ""
        with suppress(SubmissionError):  # sbatch will report the same error
            pools = [Pool.of(slurm.nodes(partition), nodes) for partition, nodes in wanted.items()]
            exclude(paths, bad, job_id=job_id, pools=pools)
    return stages, completed


def _set_aside(paths: RunPaths, stages: Collection[str]) -> None:
    """Move logs, records and events of these stages to a new folder in ``attempts/``."""
    aside = paths.new_attempt().folder
    files = [file for folder in (paths.events, paths.logs, paths.ranks) for file in folder.iterdir()]
    # The name of a file begins with its stage or job step, e.g. serve.1_0.out.
    files = [file for file in files if stage_of(re.split(r"[._]", file.name)[0]) in stages]
    files += [paths.endpoint, paths.heartbeat, paths.instances, paths.stop_request, paths.benchmark_progress]
    files += [paths.renewal]
    for file in files:
        if file.exists():
            place = aside / file.relative_to(paths.folder)
            place.parent.mkdir(exist_ok=True)
            file.rename(place)
    if paths.jobs.exists():  # copied, not moved: jobs.json must never be missing
        shutil.copy2(paths.jobs, aside)


# Cancelling ----------------------------------------------------------------------------------


def cancel_run(paths: RunPaths) -> RunStatus:
    """Cancel every job of a run, wait up to a minute for their end, and return the status; idempotent.

    A running submission is asked to stop, and cancels its own jobs. Raises SubmissionError if Slurm refuses
    the cancellation, or does not answer.
    """
    with ExitStack() as held:
        try:
            held.enter_context(locked(paths.commands_lock, BlockingIOError()))
        except OSError:  # another command has the lock, or the folder cannot be written
            with suppress(OSError):
                request_stop(paths, by=CANCEL, reason=_REASON)
                lock = locked(paths.commands_lock, BlockingIOError(), wait_s=_SUBMISSION_TIMEOUT_S)
                held.enter_context(lock)
        return _cancel(paths)


def _cancel(paths: RunPaths) -> RunStatus:
    run = RunSnapshot(paths)
    status = run_status(run)
    # Look at the stages and not at the run's state: a failed run may still have a stage in the queue.
    busy = [stage for stage in status.stages if not stage.final]
    job_ids = (
        {stage.stage: stage.job_id for stage in busy},
        {stage.stage: stage.next_job_id for stage in busy},
    )
    left = [job for ids in job_ids for job in RunJob.of(paths, run.plan, ids).values()]
    queued = queued_jobs(run)
    if status.settled and not queued:
        return status
    with suppress(OSError):  # the jobs must be cancelled even on a full disk
        request_stop(paths, by=CANCEL, reason=_REASON)  # also stops a submission that begins now
    if not left and not queued:
        return run_status(paths)
    if run.is_local:
        # If the user started the scripts with bash, their process group is not signalled: the server obeys
        # the stop request, and the companion ends with the server.
        if run.submission is not None:
            cancel_local(paths, run.submission)
        deadline = time.monotonic() + _SETTLE_TIMEOUT_S
        while not (status := run_status(paths)).settled and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return status
    watcher = JobWatcher(Slurm(*run.controller))
    if run.submission is not None and run.submission.within is not None:
        for stage in busy:  # the sweep's job reads the event, and goes on with the next variant
            add_event(paths, stage.stage, "stage_cancelled")
    else:
        watcher.slurm.cancel(left)
        for job in left:  # record jobs that an interrupted submission did not record
            if run.submission is not None and job.stage not in run.submission.stages:
                with suppress(OSError):
                    run.submission.add(paths, job.stage, job.job_id)
    deadline, cancelled = time.monotonic() + _SETTLE_TIMEOUT_S, {job.job_id for job in left}
    while True:
        late = time.monotonic() > deadline
        try:
            status, queued = run_status(paths, watcher), queued_jobs(run)
            watcher.slurm.cancel(job for job in queued.values() if job.job_id not in cancelled)
            queued_ids = {job.job_id for job in queued.values()}
            cancelled |= queued_ids
        except SubmissionError as error:
            if late or not error.transient:
                raise
        else:
            is_over = not any(stage.job_id and not stage.final for stage in status.stages)
            if late and queued and is_over:  # queued jobs that belong to no stage's status
                message = f"Jobs of the run are still in the queue: {', '.join(sorted(queued_ids))}."
                raise SubmissionError(message, hint="squeue --me")
            if late or (is_over and not queued):
                return status
        time.sleep(_POLL_S)


def end_orphans(paths: RunPaths, record: SubmissionRecord) -> None:
    """Cancel the jobs of a run whose folder is gone, which no stop request and no later command can reach.

    Raises SubmissionError if Slurm refuses the cancellation, or does not answer.
    """
    if record.scheduler == "local":
        cancel_local(paths, record)
    else:
        jobs = RunJob.of(paths, None, {stage: job.job_id for stage, job in record.stages.items()})
        Slurm(*record.controller).cancel(jobs.values())
