"""Cancelling a run, in whatever state it is."""

from __future__ import annotations

import time
from contextlib import suppress

from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runs.stages import watcher_of
from trtllm_hpc.runs.status import RunStatus, run_status
from trtllm_hpc.runtime.records import add_event
from trtllm_hpc.runtime.stop import request_stop
from trtllm_hpc.scheduler.job_info import RunJob
from trtllm_hpc.scheduler.local import cancel_local
from trtllm_hpc.scheduler.slurm import Slurm
from trtllm_hpc.scheduler.submission_record import SubmissionRecord

_SETTLE_TIMEOUT_S = 60.0
_POLL_S = 0.5


def cancel_run(paths: RunPaths) -> RunStatus:
    """Cancel every job of a run, wait (bounded) until they have ended, and return the status; idempotent.

    Raises SubmissionError if Slurm refuses the cancellation, or does not answer.
    """
    run = RunSnapshot(paths)
    status = run_status(run)
    # The run's own state does not matter: a failed run may still have a stage in the queue.
    busy = [stage for stage in status.stages if not stage.final]
    left = list(RunJob.of(paths, run.plan, {stage.stage: stage.job_id for stage in busy}).values())
    left += RunJob.of(paths, run.plan, {stage.stage: stage.next_job_id for stage in busy}).values()
    if not left:
        return status
    with suppress(OSError):  # even on a full disk the jobs must be cancelled
        request_stop(paths, by="cancel", reason="the run was cancelled")
    if run.is_local:
        # Of a run that the user started with bash the process group is not ours to signal:
        # the server obeys the request, and the companion ends with it.
        if run.submission is not None:
            cancel_local(paths, run.submission)
        return run_status(paths)
    watcher = watcher_of(run)
    if run.submission is not None and run.submission.within is not None:
        for stage in busy:  # its sweep's job sees that, and goes on with the next variant
            add_event(paths, stage.stage, "stage_cancelled")
    else:
        for job in left:  # of a submission that did not come to its end
            if run.submission is not None and job.stage not in run.submission.stages:
                run.submission.add(paths, job.stage, job.job_id)
        watcher.slurm.cancel(left)
    deadline = time.monotonic() + _SETTLE_TIMEOUT_S
    while True:
        late = time.monotonic() > deadline
        try:
            status = run_status(paths, watcher)
        except SubmissionError as error:
            if late or not error.transient:
                raise
        else:
            if late or not any(stage.job_id and not stage.final for stage in status.stages):
                return status
        time.sleep(_POLL_S)


def end_orphans(paths: RunPaths, record: SubmissionRecord) -> None:
    """End the jobs of a run whose folder is gone: no request to stop reaches them, and nobody finds them.

    Raises SubmissionError if Slurm refuses the cancellation, or does not answer.
    """
    if record.scheduler == "local":
        cancel_local(paths, record)
    else:
        jobs = RunJob.of(paths, {}, {stage: job.job_id for stage, job in record.stages.items()})
        Slurm(record.slurm_conf).cancel(jobs.values())
