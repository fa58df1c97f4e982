"""What stands still while a run goes on: named early, and given up late.

A file server's pause, or a debugger, stops processes for a moment.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.heartbeat import BEAT_S
from trtllm_hpc.runtime.process import name_of, state_of
from trtllm_hpc.runtime.records import try_event

EVENT = "trouble"
"""Name of the event; its data are ``part`` and ``why``, which is ``None`` once the trouble is over."""
GIVEN_UP_S = 45.0


class Troubles:
    """Notes each part that stands still in a stage's events, once when that begins and once when it ends."""

    def __init__(self, paths: RunPaths, stage: str) -> None:
        self._paths, self._stage = paths, stage
        self._open: set[str] = set()

    def note(self, part: str, why: str | None) -> None:
        """Note why a part stands still; ``None``: it does not, or no longer."""
        if (part in self._open) == (why is not None):
            return
        self._open ^= {part}
        try_event(self._paths, self._stage, EVENT, part=part, why=why)


class StillWatch:
    """Looks at parts every few seconds: notes a fault that lasts two looks, and gives the part up later.

    A long pause between two looks counts as one interval: the reader may have been suspended itself.
    """

    def __init__(self, troubles: Troubles, limit_s: float | None = GIVEN_UP_S) -> None:
        self._troubles = troubles
        self._limit_s = None if limit_s is None else max(limit_s, 3 * BEAT_S)
        self._seen: dict[str, int] = {}
        self._next = 0.0

    def is_due(self) -> bool:
        """Return whether it is time to look again."""
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + BEAT_S
        return True

    def look(self, faults: Mapping[str, str | None]) -> dict[str, str]:
        """Return the parts to give up, each with its fault; ``faults``: what is wrong with each part now."""
        given_up = {}
        for part, why in faults.items():
            looks = 0 if why is None else self._seen.get(part, 0) + 1
            self._seen[part] = looks
            self._troubles.note(part, why if looks > 1 else None)
            if why is not None and self._limit_s is not None and (looks - 1) * BEAT_S >= self._limit_s:
                given_up[part] = f"{why}, for {(looks - 1) * BEAT_S:.0f} s"
                self._seen[part] = 0
        return given_up


def stopped(pid: int | None, what: str) -> str | None:
    """Return that a process is stopped, in a sentence."""
    if pid is None or state_of(pid) != "T":
        return None
    return f"{what} is stopped (SIGSTOP): its process {name_of(pid)} ({pid}) on {os.uname().nodename}"
