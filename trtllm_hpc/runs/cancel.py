"""Cancelling a run, whatever state it is in."""

from __future__ import annotations

import time
from contextlib import suppress

from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runs.status import RunStatus, planned, run_status
from trtllm_hpc.runtime.stop import request_stop
from trtllm_hpc.scheduler.journal import read_journal
from trtllm_hpc.scheduler.local import cancel_local
from trtllm_hpc.scheduler.slurm import Slurm

_SETTLE_TIMEOUT_S = 60.0
_POLL_S = 0.5


def cancel_run(paths: RunPaths) -> RunStatus:
    """Cancel every job of a run and wait (bounded) until they have ended; idempotent.

    Raises:
        SubmissionError: Slurm did not take the cancellation.
    """
    before = run_status(paths)
    # Not by the run's own state: one that has failed may still have a stage in the queue.
    left = [stage.job_id for stage in before.stages if stage.job_id and not stage.final]
    if not left:
        return before
    with suppress(OSError):  # on a full disk the jobs must be cancelled all the same
        request_stop(paths, by="cancel", reason="the run was cancelled")
    journal = read_journal(paths)
    if journal is not None and journal.scheduler == "local":
        cancel_local(paths, journal)
        return run_status(paths)
    if journal is None and planned(paths, "scheduler") == "local":
        # Started with bash by a person, in whose process group we have no business:
        # the server obeys the request, and the companion ends with it.
        return run_status(paths)
    slurm = Slurm(journal.slurm_conf if journal else planned(paths, "slurm_conf"))
    slurm.cancel(left)
    return _settle(paths, slurm)


def _settle(paths: RunPaths, slurm: Slurm) -> RunStatus:
    deadline = time.monotonic() + _SETTLE_TIMEOUT_S
    while True:
        late = time.monotonic() > deadline
        try:
            status = run_status(paths, slurm)
        except SubmissionError as error:
            if late or not error.transient:
                raise
        else:
            if late or not any(stage.job_id and not stage.final for stage in status.stages):
                return status
        time.sleep(_POLL_S)
