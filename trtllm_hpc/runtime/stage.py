"""Begin and end of a stage, and the gate that stops half-submitted runs."""

from __future__ import annotations

import os
import socket
import sys
import time

from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import RunPaths, read_json
from trtllm_hpc.runtime.engine_cache.cache import entry_of
from trtllm_hpc.runtime.process import start_ticks
from trtllm_hpc.runtime.records import TOKEN_VARIABLE, StopRequest, add_event

GATE_VARIABLE = "TRTLLM_HPC_GATE_SECONDS"
"""Overrides how long a job waits for the rest of its chain to be submitted."""

GATE_TIMEOUT_S = 75.0
"""Longer than ``submit`` waits for one sbatch to answer (60 s); counted from the last sign of life."""


def begin(paths: RunPaths, stage: str) -> int:
    """Note that a stage starts, once its whole chain is submitted.

    A job that ``submit`` sent carries a token. If ``submit`` was killed before
    it had sent the other stages, the journal is never completed: the job ends
    here, and Slurm cancels what depends on it, so that nothing is orphaned.
    """
    if not _chain_is_complete(paths, os.environ.get(TOKEN_VARIABLE)):
        add_event(paths, stage, "submission_interrupted")
        print(
            "error: this run was only half submitted (its submit command was killed): nothing is started.\n"
            "  next: trtllm-hpc submit the job file again",
            file=sys.stderr,
        )
        return ExitCode.SUBMISSION
    if stage == "serve":
        _forget_last_server(paths)
        if (fault := _engine_fault(paths)) is not None:
            print(f"error: {fault}.\n  next: trtllm-hpc submit the job file again", file=sys.stderr)
            return ExitCode.START
    job_id = os.environ.get("TRTLLM_HPC_JOB_ID", "")
    group = os.getpgrp()
    add_event(
        paths,
        stage,
        "stage_begin",
        job_id=job_id,
        host=socket.gethostname(),
        group=group,
        group_started=start_ticks(group),
    )
    return ExitCode.OK


def end(paths: RunPaths, stage: str, exit_code: int) -> None:
    """Note that a stage has ended."""
    add_event(paths, stage, "stage_end", exit_code=exit_code, job_id=os.environ.get("TRTLLM_HPC_JOB_ID", ""))


def _chain_is_complete(paths: RunPaths, token: str | None) -> bool:
    if token is None:
        return True
    patience_s = float(os.environ.get(GATE_VARIABLE) or GATE_TIMEOUT_S)
    last, last_change = None, time.monotonic()
    while True:
        try:
            journal = read_json(paths.jobs)
        except ValueError:
            journal = None
        if isinstance(journal, dict) and journal.get("token") == token and journal.get("complete"):
            return True
        if journal != last:
            last, last_change = journal, time.monotonic()
        if time.monotonic() - last_change > patience_s:
            return False
        time.sleep(0.25)


def _engine_fault(paths: RunPaths) -> str | None:
    """What is wrong with the engine that this run has from the cache; that it is used is noted there."""
    entry = entry_of(paths)
    if entry is None or entry.register(paths.folder):
        return None
    faults = entry.faults()
    how = "was removed" if faults is None else f"is broken ({faults[0]})"
    return f"the engine {entry.name} {how} since this run was made"


def _forget_last_server(paths: RunPaths) -> None:
    """Remove what an earlier attempt at this stage published.

    A stop that the companion of this very submission has asked for stays: it
    may have failed while this job was still being set up.
    """
    request = StopRequest.read(paths.stop_request)
    token = os.environ.get(TOKEN_VARIABLE)
    keep_stop = request is not None and token is not None and request.token == token
    for file in (paths.endpoint, paths.heartbeat, *(() if keep_stop else (paths.stop_request,))):
        file.unlink(missing_ok=True)
    for record in paths.ranks.glob("*.json"):
        record.unlink(missing_ok=True)
