"""The endpoint of a run for ``client`` and ``bench``, or why there will never be one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trtllm_hpc.errors import (
    BuildFailed,
    JobLost,
    NotReady,
    RunCancelled,
    StartFailed,
    SubmissionError,
    TrtllmHpcError,
)
from trtllm_hpc.paths import call_name

if TYPE_CHECKING:
    from trtllm_hpc.paths import RunPaths
    from trtllm_hpc.runs.status import StageStatus
    from trtllm_hpc.runtime.records import Endpoint

_FIRST_PAUSE_S = 5.0
"""Slurm is asked at once, after this, and then after ever longer pauses."""


def endpoint_of(run: RunPaths, wait_seconds: float) -> Endpoint:
    """The ready endpoint of a run; asks Slurm now and then whether it can still come.

    Raises:
        BuildFailed, StartFailed, RunCancelled, JobLost: it cannot come any more.
        NotReady: it did not come within ``wait_seconds``.
    """
    from trtllm_hpc.client.wait import wait_for_endpoint

    if "TRTLLM_HPC_JOB_ID" in os.environ:
        # The companion itself: the node may have no Slurm commands, and cancels it with the server.
        return wait_for_endpoint(run, wait_seconds)
    due_s = 0.0

    def ask(waited_s: float) -> None:
        nonlocal due_s
        if waited_s >= due_s:
            due_s = 2 * waited_s + _FIRST_PAUSE_S
            refuse_ended(run)

    try:
        return wait_for_endpoint(run, wait_seconds, on_wait=ask)
    except NotReady:
        refuse_ended(run)
        raise


def refuse_ended(run: RunPaths) -> None:
    """Raise the error for a run whose server has ended, or can never start, by what Slurm says."""
    from trtllm_hpc.client.wait import was_submitted
    from trtllm_hpc.runs.status import run_status
    from trtllm_hpc.runtime.records import read_events

    if not was_submitted(run):
        return
    try:
        status = run_status(run)
    except SubmissionError:
        return  # Slurm does not answer now; the wait has its own end.
    # A server that was started again by hand does not care how the first build ended.
    deciding = ("serve",) if read_events(run, "serve") else ("build", "serve")
    for stage in status.stages:
        if stage.stage in deciding and stage.final and not (stage.ok and stage.stage == "build"):
            raise _error(run, stage)


def _error(run: RunPaths, stage: StageStatus) -> TrtllmHpcError:
    if stage.ok:
        message = f"The server of run {run.run_id} has already ended."
        return StartFailed(message, hint="submit the job file again")
    kind: type[TrtllmHpcError] = BuildFailed if stage.stage == "build" else StartFailed
    kind = {"CANCELLED": RunCancelled, "LOST": JobLost}.get(stage.state, kind)
    return kind(
        f"Run {run.run_id} has no server to ask: stage {stage.stage} {stage.sentence}.",
        hint=f"trtllm-hpc logs {call_name(run)}",
    )
