"""Begin and end of a stage; a stage of an incompletely submitted run does not begin."""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import suppress

from trtllm_hpc.errors import Diagnostic, ExitCode, fail
from trtllm_hpc.paths import RunPaths, call_name, read_json
from trtllm_hpc.runtime.node import remove_of_ended_jobs
from trtllm_hpc.runtime.process import output_of, start_ticks
from trtllm_hpc.runtime.records import TOKEN_VARIABLE, StopRequest, add_event, of_last_job, read_events

SUBMISSION_VARIABLE = "TRTLLM_HPC_GATE_SECONDS"
"""Environment variable that overrides SUBMISSION_TIMEOUT_S."""

SUBMISSION_TIMEOUT_S = 120.0
"""Seconds since the last change of jobs.json that a job waits for the rest of its chain to be submitted:
longer than one sbatch (60 s), the search for its job (40 s) and the cancelling of a duplicate (10 s)
together."""

_SERVER_EVENTS = ("stage_begin", "server_start", "ready", "server_stop", "failed", "companion_missing")
"""Events that show whether the supervisor has a server."""


def begin(paths: RunPaths, stage: str) -> int:
    """Record that a stage begins, once its whole chain is submitted; return the exit code.

    If ``submit`` was killed before it had submitted all stages, its record (``jobs.json``) is never
    completed. The job then ends here, and Slurm cancels the jobs that depend on it.
    """
    if not chain_is_complete(paths, os.environ.get(TOKEN_VARIABLE)):
        add_event(paths, stage, "submission_interrupted")
        print(
            "error: this run was only half submitted (its submit command was killed): nothing is started.\n"
            f"  next: trtllm-hpc resume {call_name(paths)}",
            file=sys.stderr,
        )
        return ExitCode.SUBMISSION
    if stage == "serve":
        remove_of_ended_jobs()
        # Remove the files of an earlier attempt. A stop request of this submission stays: its companion may
        # have failed while this job was being set up.
        token, request = os.environ.get(TOKEN_VARIABLE), StopRequest.read(paths.stop_request)
        files = [paths.endpoint, paths.heartbeat, paths.instances, *paths.ranks.glob("*.json")]
        if request is None or token is None or request.token != token:
            files.append(paths.stop_request)
        for file in files:
            file.unlink(missing_ok=True)
    fault, at_begin = None, os.environ.get("BASH_ENV")
    if at_begin and "begins" not in (output_of(["bash", "-c", "echo begins"], timeout_s=60) or ""):
        message = f"bash ends in the file that BASH_ENV names, {at_begin}, before a script begins"
        fault = fail(
            message, f"mend {at_begin}"
        )  # every further script of the run would fail in the same way
    elif stage == "serve":
        fault = _engine_fault(paths)
    if fault is not None:
        add_event(paths, stage, "preflight_failed", reason=fault.message, next=fault.hint)
        print(f"error: {fault.message}.\n  next: {fault.hint}", file=sys.stderr)
        return ExitCode.START
    job_id, host, group = os.environ.get("TRTLLM_HPC_JOB_ID", ""), socket.gethostname(), os.getpgrp()
    by = {"group": group, "group_started": start_ticks(group), "submitted": TOKEN_VARIABLE in os.environ}
    add_event(paths, stage, "stage_begin", job_id=job_id, host=host, **by)
    return ExitCode.OK


def end(paths: RunPaths, stage: str, exit_code: int) -> None:
    """Record once that a stage has ended, and remove the endpoint that a killed server leaves."""
    marks = [event.name for event in read_events(paths, stage) if event.name.startswith("stage_")]
    if stage == "companion" and marks[-1:] == ["stage_end"]:
        return  # the companion's own script has recorded it
    was_killed, killed = exit_code > 128 and exit_code != 143, f"was killed by signal {exit_code - 128}"
    if stage == "serve":
        with suppress(OSError):
            paths.endpoint.unlink(missing_ok=True)
        marks = [event.name for event in read_events(paths, "serve") if event.name in _SERVER_EVENTS]
        if was_killed and marks[-1:] in (["server_start"], ["ready"]):  # the server has no recorded end
            add_event(paths, stage, "failed", reason=f"the supervisor of the run {killed}")
    elif stage == "companion" and was_killed:
        names = {event.name for event in of_last_job(read_events(paths, stage))}
        if "failed" not in names:  # the heartbeat records why it kills a process that stands still
            add_event(paths, stage, "failed", reason=f"the companion {killed}")
    add_event(paths, stage, "stage_end", exit_code=exit_code, job_id=os.environ.get("TRTLLM_HPC_JOB_ID", ""))


def chain_is_complete(paths: RunPaths, token: str | None) -> bool:
    """Wait until the submission with ``token`` is complete; return ``False`` after the timeout."""
    if token is None:
        return True
    timeout_s = float(os.environ.get(SUBMISSION_VARIABLE) or SUBMISSION_TIMEOUT_S)
    last, last_change = None, time.monotonic()
    while True:
        try:
            record = read_json(paths.jobs)
        except (ValueError, OSError):
            record = None
        if isinstance(record, dict) and record.get("token") == token and record.get("complete"):
            return True
        if record != last:
            last, last_change = record, time.monotonic()
        if time.monotonic() - last_change > timeout_s:
            return False
        time.sleep(0.25)


def _engine_fault(paths: RunPaths) -> Diagnostic | None:
    """Register the run's use of its cached engine; return what is wrong with the engine, or ``None``."""
    from trtllm_hpc.runtime.engine_cache.cache import entry_of  # only the serve stage needs this import

    entry = entry_of(paths)
    if entry is None or entry.register(paths.folder):
        return None
    again, host = "trtllm-hpc submit the job file again", socket.gethostname()
    if faults := entry.faults():
        return fail(f"the engine {entry.name} is broken ({faults[0]}) since this run was rendered", again)
    following = f"ls {entry.folder} where you submit: if it is there, mount it on {host} too; if not, {again}"
    message = f"node {host} does not see the engine {entry.name}: it was removed, or is not mounted"
    return fail(message, following)
