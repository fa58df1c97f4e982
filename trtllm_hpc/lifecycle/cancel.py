"""Cancelling a run, whatever state it is in."""

from __future__ import annotations

import os
import signal
import time

from trtllm_hpc.lifecycle.chain import process_start_ticks
from trtllm_hpc.lifecycle.journal import Journal, read_journal
from trtllm_hpc.lifecycle.script import end_group
from trtllm_hpc.lifecycle.slurm import Slurm
from trtllm_hpc.lifecycle.status import RunStatus, run_status
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import add_event, read_events
from trtllm_hpc.runtime.stop import request_stop
from trtllm_hpc.runtime.sweep import sweep

_SETTLE_TIMEOUT_S = 60.0
_POLL_S = 0.5


def cancel_run(paths: RunPaths) -> RunStatus:
    """Cancel every job of a run and wait (bounded) until they have ended; idempotent.

    Raises:
        SubmissionError: Slurm did not take the cancellation.
    """
    before = run_status(paths)
    if before.state.final or before.state.value == "rendered":
        return before
    request_stop(paths, by="cancel", reason="the run was cancelled")
    journal = read_journal(paths)
    if journal is not None and journal.scheduler == "local":
        _cancel_local(paths, journal)
        return run_status(paths)
    slurm = Slurm(journal.slurm_conf if journal else None)
    slurm.cancel(stage.job_id for stage in before.stages if stage.job_id and not stage.final)
    return _settle(paths, slurm)


def _settle(paths: RunPaths, slurm: Slurm) -> RunStatus:
    deadline = time.monotonic() + _SETTLE_TIMEOUT_S
    while True:
        status = run_status(paths, slurm)
        left = [stage for stage in status.stages if stage.job_id and not stage.final]
        if not left or time.monotonic() > deadline:
            return status
        time.sleep(_POLL_S)


def _cancel_local(paths: RunPaths, journal: Journal) -> None:
    # Companion first: it must not take the server's end for a failure.
    for stage in reversed(list(journal.stages)):
        job = journal.stages[stage]
        events = [event for event in read_events(paths, stage) if event.name.startswith("stage_")]
        if events and events[-1].name == "stage_end":
            continue
        add_event(paths, stage, "stage_cancelled")
        if events:
            end_group(int(events[-1].data["pid"]))
        if job.process_started is not None and process_start_ticks(int(job.job_id)) == job.process_started:
            os.kill(int(job.job_id), signal.SIGTERM)
        for event in events:
            sweep(f"trt{event.data['job_id']}_")
