"""Asking the server to stop, and the companion's sign of life.

Both are files in the run folder: they work across nodes, in and out of
containers, with and without Slurm.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.process import descendants
from trtllm_hpc.runtime.records import TOKEN_VARIABLE, RankRecord, StopRequest, read_events

HEARTBEAT_INTERVAL_S = 5.0


def request_stop(paths: RunPaths, *, by: str, reason: str) -> None:
    """Ask rank 0 to end the server in good order; the first to ask is the one recorded."""
    if StopRequest.read(paths.stop_request) is None:
        token = os.environ.get(TOKEN_VARIABLE)
        StopRequest(by=by, reason=reason, requested_at=time.time(), token=token).write(paths.stop_request)


def beat_while(paths: RunPaths, pid: int) -> None:
    """Touch the heartbeat file until the process ``pid`` is gone; end it when the server is.

    A benchmark against a server that has died must not run to its own bound.
    """
    next_beat = 0.0
    # As a child of that process this one is re-parented when it dies; a pid
    # alone could be somebody else's by then.
    while os.getppid() == pid:
        if time.monotonic() >= next_beat:
            paths.heartbeat.touch()
            next_beat = time.monotonic() + HEARTBEAT_INTERVAL_S
        if StopRequest.read(paths.stop_request) is None and server_has_ended(paths):
            print("error: the server has ended before the companion was done", file=sys.stderr, flush=True)
            for child in descendants(pid):
                if child != os.getpid():
                    _terminate(child)
            return
        time.sleep(1)


def server_has_ended(paths: RunPaths) -> bool:
    """Whether rank 0, or the whole serve stage, has written its end."""
    leader = RankRecord.read(paths.rank_record("serve", 0))
    if leader is not None and leader.ended_at is not None:
        return True
    marks = [event.name for event in read_events(paths, "serve") if event.name.startswith("stage_")]
    return bool(marks) and marks[-1] == "stage_end"


def _terminate(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
