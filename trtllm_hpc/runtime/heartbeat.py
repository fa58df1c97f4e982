"""The ranks' heartbeats: a file for each rank, which its supervisor changes every few seconds.

Only changes count, and the reader's own clock times them: a node's clock may be off by an hour. A long
pause of the reader counts as two looks only, since then it, or the file server under all of them, may have
been suspended itself.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.process import stopped_descendants

BEAT_S = 5.0
SILENT = "it has given no sign of life"
"""How a rank without a heartbeat is described; node names are read from such a sentence."""
_MISSED_S = 2.5 * BEAT_S
_OWN = -1
"""The reader's own heartbeat among those that it reads."""
_BYTES = 512
"""Every beat has this length, so that it overwrites the one before and needs no space on a full disk."""


class Heartbeat:
    """This rank's own. ``beat`` may be called often; it writes every :data:`BEAT_S` seconds."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._number = 0
        self._next = 0.0
        self._stopped: set[int] = set()

    def begin(self) -> None:
        """Beat in a thread as long as this process lives."""

        def beats() -> None:
            while True:
                self.beat()
                time.sleep(1)

        threading.Thread(target=beats, name="heartbeat", daemon=True).start()

    def beat(self) -> None:
        """Write that this rank is alive, and which of its processes have been stopped for two beats."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + BEAT_S
        self._number += 1
        stopped = stopped_descendants(os.getpid())
        # A debugger, or Slurm on its way to cancel, stops processes for a moment.
        lasting = [f"{name} ({pid})" for pid, name in stopped.items() if pid in self._stopped]
        self._stopped = set(stopped)
        text = f"{self._number} {', '.join(lasting)}".encode()[: _BYTES - 1]
        with suppress(OSError):  # nobody is to end because of a file system that is away for a moment
            # In place: behind a folder that NFS has cached, a replaced file stays invisible for a minute.
            handle = os.open(self.file, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.pwrite(handle, text.ljust(_BYTES - 1) + b"\n", 0)
            finally:
                os.close(handle)


@dataclass
class _Seen:
    content: str
    changes: int = 0
    silent_s: float = 0.0
    stopped: str = ""
    stopped_s: float = 0.0


@dataclass(frozen=True)
class Heartbeats:
    """What a reader sees of the ranks: what is wrong with a rank, as the end of a sentence, by rank."""

    silent: Mapping[int, str] = field(default_factory=dict)
    """Ranks without a heartbeat for the limit."""
    stopped: Mapping[int, str] = field(default_factory=dict)
    """Ranks with a stopped process."""
    given_up: Mapping[int, str] = field(default_factory=dict)
    """Ranks with a stopped process for the limit."""
    suspects: Mapping[int, str] = field(default_factory=dict)
    """Ranks that may be at fault: they missed two beats, or have a stopped process."""


ALL_WELL = Heartbeats()


@dataclass
class SilenceWatch:
    """Notices that ranks are silent, or have a stopped process, for ``limit_s``.

    A rank that has not begun to beat is not silent. Without ``limit_s`` no rank is silent or given up.

    While the reader's ``own`` heartbeat does not change, the file system is full or gone, and silence says
    nothing.
    """

    files: Mapping[int, Path]
    limit_s: float | None
    own: Path
    _seen: dict[int, _Seen] = field(default_factory=dict)
    _looked_at: float | None = None
    _last: Heartbeats = ALL_WELL

    def look(self) -> Heartbeats:
        """Read the heartbeats, at most once a second; in between the result is the last one."""
        now = time.monotonic()
        if self._looked_at is None or now - self._looked_at >= 1.0:
            passed_s = 0.0 if self._looked_at is None else min(now - self._looked_at, 2.0)
            self._looked_at = now
            self._read(passed_s)
            stopped = {
                rank: _which_stopped(seen.stopped)
                for rank, seen in self._seen.items()
                if rank != _OWN and seen.stopped
            }
            limit_s = math.inf if self.limit_s is None else self.limit_s
            given_up = {
                rank: f"{why}, for {self._seen[rank].stopped_s:.0f} s"
                for rank, why in stopped.items()
                if self._seen[rank].stopped_s >= limit_s
            }
            suspects = {**stopped, **self._silent_for(_MISSED_S)}
            self._last = Heartbeats(self._silent_for(limit_s), stopped, given_up, suspects)
        return self._last

    def _silent_for(self, limit_s: float) -> dict[int, str]:
        if _OWN not in self._seen or self._seen[_OWN].silent_s >= _MISSED_S:
            return {}
        return {
            rank: f"{SILENT} for {seen.silent_s:.0f} s: its node may be lost, or stopped"
            for rank, seen in self._seen.items()
            if rank != _OWN and seen.changes and seen.silent_s >= limit_s
        }

    def _read(self, passed_s: float) -> None:
        for rank, file in {_OWN: self.own, **self.files}.items():
            try:
                content = file.read_text(encoding="utf-8", errors="replace")
            except FileNotFoundError:
                if rank != _OWN:
                    self._seen.setdefault(rank, _Seen(""))  # its first beat will be a change
                continue
            except OSError:
                return  # this node does not see the file system: that says nothing about the others
            seen = self._seen.setdefault(rank, _Seen(content))
            if seen.content == content:
                seen.silent_s += passed_s
            else:
                seen.content, seen.silent_s, seen.changes = content, 0.0, seen.changes + 1
            seen.stopped = content.strip().partition(" ")[2]
            seen.stopped_s = seen.stopped_s + passed_s if seen.stopped else 0.0


def _which_stopped(processes: str) -> str:
    words = ("processes", "are") if ", " in processes else ("process", "is")
    return f"its {words[0]} {processes} {words[1]} stopped (SIGSTOP)"


def watch_ranks(paths: RunPaths, step: str, ranks: range, limit_s: float | None, own: Path) -> SilenceWatch:
    """Return a watch over ranks of one step, which may miss two beats in any case."""
    limit_s = None if limit_s is None else max(limit_s, 3 * BEAT_S)
    return SilenceWatch({rank: paths.rank_heartbeat(step, rank) for rank in ranks}, limit_s, own)
