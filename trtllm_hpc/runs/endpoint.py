"""The endpoint of a run for ``client``, ``bench`` and ``metrics``, or why there will never be one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from trtllm_hpc.client.wait import wait_for_endpoint, was_submitted
from trtllm_hpc.errors import (
    BuildFailed,
    JobLost,
    NotReady,
    RunCancelled,
    StartFailed,
    SubmissionError,
    TrtllmHpcError,
)
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import RunPaths, call_name
from trtllm_hpc.runtime.records import Endpoint
from trtllm_hpc.scheduler.states import LOST

if TYPE_CHECKING:
    from trtllm_hpc.runs.stages import StageStatus

_RENEWAL_S = 300.0
_FIRST_PAUSE_S = 5.0
"""Slurm is queried at once, after this pause, and then after ever longer ones."""


def endpoint_of(
    run: RunPaths, wait_seconds: float, *, on_wait: Callable[[float], object] | None = None
) -> Endpoint:
    """Wait for the ready endpoint of a run; query Slurm now and then whether it can still come.

    ``on_wait`` is called before each pause with the seconds waited so far. Raises BuildFailed, StartFailed,
    RunCancelled or JobLost if the endpoint can never come; NotReady if it did not come within
    ``wait_seconds``. If one job follows the other (``serve.renew``), the next one is waited for at least five
    minutes.
    """
    if run.renewal.exists():
        wait_seconds = max(wait_seconds, _RENEWAL_S)
    due_s = 0.0

    def check(waited_s: float) -> None:
        nonlocal due_s
        if on_wait is not None:
            on_wait(waited_s)
        if waited_s >= due_s:
            due_s = 2 * waited_s + _FIRST_PAUSE_S
            _refuse_ended(run)

    try:
        return wait_for_endpoint(run, wait_seconds, on_wait=check)
    except NotReady:
        _refuse_ended(run)
        raise


def follower_of(run: RunPaths, *, restarts: bool = False) -> Callable[[], Endpoint] | None:
    """Return what finds the server's new place once another job serves; ``None`` if no other job ever will.

    With ``restarts`` it also waits for an instance that is started again.
    """

    def follow() -> Endpoint:
        ends = {it.get("state") for it in RunSnapshot(run).instances or ()}
        return endpoint_of(run, _FIRST_PAUSE_S if ends <= {"ended", "failed"} else _RENEWAL_S)

    return follow if run.renewal.exists() or (restarts and run.instances.exists()) else None


def _refuse_ended(run: RunPaths) -> None:
    """Raise the error for a run whose server has ended or can never start, according to Slurm.

    The heartbeat of a companion ends it with a server that has begun. It asks Slurm about a job whose script
    never begins, as after a failed prolog.
    """
    is_companion = "TRTLLM_HPC_JOB_ID" in os.environ
    if not was_submitted(run) or (is_companion and RunSnapshot(run).events("serve")):
        return
    from trtllm_hpc.runs.status import run_status  # not needed where the server is ready

    snapshot = RunSnapshot(run)
    try:
        status = run_status(snapshot)
    except SubmissionError:
        return  # Slurm does not answer now; the wait is bounded anyway
    # For a server that was started again by hand the end of the first build does not matter.
    deciding = ("serve",) if snapshot.events("serve") else ("build", "serve")
    for stage in status.stages:
        if is_companion and stage.state == LOST.name:
            continue  # its node may see another Slurm
        if stage.stage in deciding and stage.final and not (stage.ok and stage.stage == "build"):
            raise _error(run, stage)


def _error(run: RunPaths, stage: StageStatus) -> TrtllmHpcError:
    if stage.ok:
        message = f"The server of run {run.run_id} has already ended."
        return StartFailed(message, hint="submit the job file again")
    kind: type[TrtllmHpcError] = BuildFailed if stage.stage == "build" else StartFailed
    kind = {"CANCELLED": RunCancelled, "LOST": JobLost}.get(stage.state, kind)
    return kind(
        f"Run {run.run_id} has no server: stage {stage.stage} {stage.sentence}.",
        hint=f"trtllm-hpc logs {call_name(run)}",
    )
