"""What stands still while a run goes on: named early, and given up late.

A file server's pause, a debugger, or Slurm on its way to cancel, stops processes for a moment.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.heartbeat import BEAT_S, Heartbeat, watch_ranks
from trtllm_hpc.runtime.process import start_ticks, stopped_descendants
from trtllm_hpc.runtime.records import try_event

EVENT = "trouble"
"""Name of the event; its data are ``part`` and ``why``, which is ``None`` once the trouble is over."""


class Troubles:
    """Notes what stands still in a stage's events, when that begins and when it ends.

    :meth:`look` is called every :data:`BEAT_S`, and counts the looks: this process may be suspended, too.
    """

    def __init__(self, paths: RunPaths, stage: str, limit_s: float | None = 45.0) -> None:
        self._paths, self._stage = paths, stage
        self._limit_s = math.inf if limit_s is None else max(limit_s, 3 * BEAT_S)
        self._looks: dict[str, int] = {}
        self._noted: set[str] = set()
        self._next = 0.0

    def is_due(self) -> bool:
        """Return whether it is time to look again."""
        now, due = time.monotonic(), self._next
        self._next = now + BEAT_S if now >= due else due
        return now >= due

    def note(self, faults: Mapping[str, str]) -> None:
        """Note what is wrong now, by part."""
        for part in sorted(self._noted ^ faults.keys()):
            try_event(self._paths, self._stage, EVENT, part=part, why=faults.get(part))
        self._noted = set(faults)

    def look(self, faults: Mapping[str, str]) -> dict[str, str]:
        """Note what was wrong at the last look, too; return the parts to give up, each with its fault."""
        self._looks = {part: self._looks.get(part, -1) + 1 for part in faults}
        self.note({part: why for part, why in faults.items() if self._looks[part]})
        lasted_s = {part: looks * BEAT_S for part, looks in self._looks.items()}
        late = [part for part in faults if lasted_s[part] >= self._limit_s]
        return {part: f"{faults[part]}, for {lasted_s[part]:.0f} s" for part in late}


def stopped_below(root: int, without: Collection[int] = ()) -> dict[str, str]:
    """Return the stopped (SIGSTOP) descendants of a process, each with a sentence, by process id."""
    found = {}
    for pid in stopped_descendants(root).keys() - set(without):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            command = " ".join(words).strip()[:100]
            found[str(pid)] = f"process {pid} on {os.uname().nodename} is stopped (SIGSTOP): {command}"
    return found


def watch_build(paths: RunPaths, pid: int) -> None:
    """Note a build that is stopped, or on a lost node, until the batch script, process ``pid``, is gone."""
    own, begun = Heartbeat(paths.rank_heartbeat("build_watch", 0)), start_ticks(pid)
    troubles, watch = Troubles(paths, "build"), watch_ranks(paths, "build", range(1), None, own.file)
    while begun is not None and start_ticks(pid) == begun:
        own.beat()
        why = watch.look().suspects.get(0)
        troubles.note({} if why is None else {"build": f"the build: {why}"})
        time.sleep(1)
