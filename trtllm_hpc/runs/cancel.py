"""Cancelling a run, in whatever state it is."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress

from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import RunPaths, locked
from trtllm_hpc.runs.status import RunStatus, queued_jobs, run_status, watcher_of
from trtllm_hpc.runtime.records import add_event
from trtllm_hpc.runtime.stop import CANCEL, request_stop
from trtllm_hpc.scheduler.job_info import RunJob
from trtllm_hpc.scheduler.local import cancel_local
from trtllm_hpc.scheduler.slurm import Slurm
from trtllm_hpc.scheduler.submission_record import SubmissionRecord

_SETTLE_TIMEOUT_S = 60.0
_SUBMISSION_TIMEOUT_S = 150.0
"""A submission sees the request to stop after the sbatch that it waits for, and then cancels its jobs."""
_POLL_S = 0.5
_REASON = "the run was cancelled"


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
    watcher = watcher_of(run)
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
        Slurm(record.slurm_conf).cancel(jobs.values())
