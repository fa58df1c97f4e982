"""Stop requests, and the companion's heartbeat.

Both are files in the run folder, so they work across nodes, inside and outside containers, with and without
Slurm.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from trtllm_hpc.paths import RunPaths, read_json
from trtllm_hpc.runtime.heartbeat import BEAT_S, Heartbeat, SilenceWatch, Troubles, stopped_below
from trtllm_hpc.runtime.process import descendants, output_of, seconds_of, send
from trtllm_hpc.runtime.records import TOKEN_VARIABLE, StopRequest, read_events, try_event

CANCEL = "cancel"
"""Requester of the stop when the user cancels a run; a running submission stops, too."""
SUPERVISOR = "supervisor"
"""Requester of the stop of all instances after a failure."""
SUPERVISOR_VARIABLE = "TRTLLM_HPC_SUPERVISOR"
"""Environment variable of the ranks: process ID and start time of the supervisor on the job's first node."""


_ASK_AFTER_S = 3 * BEAT_S
_ASK_S = 30.0
"""Seconds between two queries to Slurm for the state of a silent companion."""
_ANSWER_S = 5.0
_ENDED = "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED TIMEOUT"
"""States in which Slurm has ended a job."""


def request_stop(paths: RunPaths, *, by: str, reason: str) -> None:
    """Request rank 0 to end the server in an orderly way. Only the first request is recorded."""
    if StopRequest.read(paths.stop_request) is None:
        token = os.environ.get(TOKEN_VARIABLE)
        StopRequest(by=by, reason=reason, requested_at=time.time(), token=token).write(paths.stop_request)


def beat_while(paths: RunPaths, pid: int) -> None:
    """Beat for the companion until the process ``pid`` is gone; end that process if the server ends first.

    A benchmark must not run to its time limit against a dead server. A stopped benchmark must not look alive
    because of this heartbeat, so its stopped processes are killed.
    """
    heartbeat, troubles = Heartbeat(paths.heartbeat), Troubles(paths, "companion")
    for _ in seconds_of(pid):
        if troubles.is_due():
            end_what_stands_still(paths, pid, troubles)
        heartbeat.beat()
        request = StopRequest.read(paths.stop_request)
        # A request by the supervisor means that the server is lost; any other stop ends the companion anyway.
        if (request is None or request.by == SUPERVISOR) and server_has_ended(paths):
            print("error: the server has ended before the companion was done", file=sys.stderr, flush=True)
            send(set(descendants(pid)) - {os.getpid()}, signal.SIGTERM)
            return


def end_what_stands_still(paths: RunPaths, pid: int, troubles: Troubles) -> None:
    """Kill descendants of ``pid`` that have been stopped for the limit of ``troubles``, and record why."""
    for part, why in troubles.look(stopped_below(pid)).items():
        try_event(paths, "companion", "failed", reason=why)
        send([int(part)], signal.SIGKILL)


class CompanionWatch:
    """Notices that the companion does not start within ``start_s``, or is silent for ``silence_s``.

    ``None``: no limit. While the companion is missing, Slurm is asked for the state of its job. ``own`` is
    the caller's own heartbeat file.
    """

    def __init__(self, paths: RunPaths, start_s: float | None, silence_s: float | None, own: Path) -> None:
        self._paths = paths
        self._start_s, self._silence_s = start_s, silence_s
        self._begun = self._ask_at = 0.0
        self._of_slurm = ""
        self._watch = SilenceWatch({0: paths.heartbeat}, silence_s, own)
        self._watch.look()

    def begin(self) -> None:
        """Start counting ``start_s``: the server is ready now."""
        self._begun = time.monotonic()

    def missing(self) -> str | None:
        """Return a sentence once the companion is missing; request the stop if Slurm has ended its job."""
        seen, has_begun, now = self._watch.look(), self._watch.has_begun(0), time.monotonic()
        limit_s = self._silence_s if has_begun else self._start_s
        if limit_s is None:
            return None
        is_suspect = bool(seen.suspects) if has_begun else now - self._begun > _ASK_AFTER_S
        if not is_suspect:
            self._of_slurm = ""
        elif now >= self._ask_at:
            self._ask_at = now + _ASK_S
            events = read_events(self._paths, "companion")
            begins = [event.data for event in events if event.name == "stage_begin"]
            with suppress(OSError, ValueError, KeyError, TypeError):
                stages = (read_json(self._paths.jobs) or {}).get("stages", {})
                job = (begins[-1] if begins else stages["companion"])["job_id"]
                # Only if the companion has a job of its own.
                if job and os.environ.get("SLURM_JOB_ID") not in (None, job):
                    command = ["squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}"]
                    state = (output_of(command, _ANSWER_S) or "").strip()
                    self._of_slurm = f": its job {job} is {state}" if state else ""
                    if state in _ENDED.split():
                        request_stop(self._paths, by="companion", reason=f"its job {job} has ended: {state}")
        if seen.silent:
            return f"the companion gave no sign of life for {limit_s:.0f} s{self._of_slurm}"
        if not has_begun and now - self._begun > limit_s:
            return f"no companion came within {limit_s:.0f} s{self._of_slurm}"
        return None


def server_has_ended(paths: RunPaths) -> bool:
    """Return whether the serve stage has recorded its end, and no further job is to serve.

    The end of a server alone is not enough, because a server may be restarted.
    """
    marks = [event for event in read_events(paths, "serve") if event.name.startswith("stage_")]
    if not marks or marks[-1].name != "stage_end":
        return False
    try:  # with serve.renew another job may serve after the ended job
        renewal, ended = read_json(paths.renewal) or {}, marks[-1].data.get("job_id")
    except (OSError, ValueError):
        return False  # undecided; the caller asks again
    # The next job enters its ID in this record a moment before it records its begin.
    return renewal.get("next_job_id") is None and renewal.get("job_id", ended) == ended
