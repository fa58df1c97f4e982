"""Heartbeats, and the detection of processes that are lost or stopped.

A heartbeat is a file that its owner rewrites every few seconds. Its owners are the supervisor of each rank,
the run's supervisor, the companion and a build. A reader notices only changes, and times them by its own
clock, because a node's clock may be off by an hour. A long pause between two looks counts as 2 s only: the
reader itself, or the file server, may have been suspended.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.process import seconds_of, stopped_descendants
from trtllm_hpc.runtime.records import try_event

BEAT_S = 5.0
"""Seconds between two beats."""
SILENT = "it has given no sign of life"
"""Describes a rank without a heartbeat; :mod:`bad_nodes` recognises silent nodes by this text."""
_MISSED_S = 2.5 * BEAT_S
_BYTES = 512
"""Length of every beat: a beat overwrites the one before, so it needs no space on a full disk."""


class Heartbeat:
    """This process's own heartbeat. ``beat`` may be called often; it writes every :data:`BEAT_S` seconds."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._number = 0
        self._next = 0.0
        self._stopped: set[int] = set()

    def begin(self) -> None:
        """Beat in a thread as long as this process lives."""

        def keep_beating() -> None:
            while True:
                self.beat()
                time.sleep(1)

        threading.Thread(target=keep_beating, name="heartbeat", daemon=True).start()

    def beat(self) -> None:
        """Write that this process is alive, and which of its descendants have been stopped for two beats."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + BEAT_S
        self._number += 1
        stopped = stopped_descendants(os.getpid())
        # Two beats, because a debugger, or Slurm before it cancels a job, stops processes for a moment.
        lasting = [f"{name} ({pid})" for pid, name in stopped.items() if pid in self._stopped]
        self._stopped = set(stopped)
        text = f"{self._number} {', '.join(lasting)}".encode()[: _BYTES - 1]
        with suppress(OSError):  # a file system that fails for a moment must not end this process
            # Written in place, because NFS caches folders: a replaced file can stay invisible for a minute.
            handle = os.open(self.file, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.pwrite(handle, text.ljust(_BYTES - 1) + b"\n", 0)
            finally:
                os.close(handle)


@dataclass(frozen=True)
class Heartbeats:
    """Faults of the watched ranks: each field has the end of a sentence by rank."""

    silent: Mapping[int, str] = field(default_factory=dict)
    """Ranks that have had no heartbeat for the whole limit."""
    stopped: Mapping[int, str] = field(default_factory=dict)
    """Ranks with a stopped process."""
    given_up: Mapping[int, str] = field(default_factory=dict)
    """Ranks with a process that has been stopped for the whole limit."""
    suspects: Mapping[int, str] = field(default_factory=dict)
    """Ranks that may be at fault: they have missed two beats, or have a stopped process."""


ALL_WELL = Heartbeats()


@dataclass
class _Beats:
    """One heartbeat, as its reader has seen it."""

    content: str
    """The file's content at the last look."""
    have_begun: bool = False
    """Whether the file has changed since the first look."""
    silent_s: float = 0.0
    """Seconds since the last change."""
    stopped_s: float = 0.0
    """Seconds for which a process has been stopped."""

    def look(self, content: str, passed_s: float) -> None:
        """Take in the file's content, ``passed_s`` seconds after the previous look."""
        self.silent_s += passed_s
        if content != self.content:
            self.content, self.silent_s, self.have_begun = content, 0.0, True
        self.stopped_s = self.stopped_s + passed_s if self.stopped else 0.0

    @property
    def stopped(self) -> str:
        """The stopped processes named in the last beat, as the end of a sentence; empty without any."""
        processes = self.content.strip().partition(" ")[2]
        words = "processes" if ", " in processes else "process"
        are = "are" if ", " in processes else "is"
        return f"its {words} {processes} {are} stopped (SIGSTOP)" if processes else ""


class SilenceWatch:
    """Finds ranks that have been silent, or had a stopped process, for ``limit_s`` seconds.

    A rank that has not begun to beat is not silent. Without ``limit_s`` no rank is silent or given up.

    While the reader's ``own`` heartbeat does not change, the file system is full or gone, so no rank counts
    as silent.
    """

    def __init__(self, files: Mapping[int, Path], limit_s: float | None, own: Path) -> None:
        self._files, self._own_file = files, own
        self._limit_s = math.inf if limit_s is None else limit_s
        self._own: _Beats | None = None
        self._beats: dict[int, _Beats] = {}
        self._looked_at: float | None = None
        self._last = ALL_WELL

    def has_begun(self, rank: int) -> bool:
        """Return whether a rank's heartbeat has changed since the first look."""
        return rank in self._beats and self._beats[rank].have_begun

    def look(self) -> Heartbeats:
        """Read the heartbeats, at most once a second; return the last result in between."""
        now = time.monotonic()
        if self._looked_at is None or now - self._looked_at >= 1.0:
            passed_s = 0.0 if self._looked_at is None else min(now - self._looked_at, 2.0)
            self._looked_at = now
            with suppress(OSError):  # this node does not see the file system, so it cannot judge other ranks
                with suppress(FileNotFoundError):
                    content = self._own_file.read_text(encoding="utf-8", errors="replace")
                    self._own = self._own or _Beats(content)
                    self._own.look(content, passed_s)
                for rank, file in self._files.items():
                    try:
                        content = file.read_text(encoding="utf-8", errors="replace")
                        self._beats.setdefault(rank, _Beats(content)).look(content, passed_s)
                    except FileNotFoundError:
                        self._beats.setdefault(rank, _Beats(""))  # the rank's first beat will be a change
            stopped = {rank: beats.stopped for rank, beats in self._beats.items() if beats.stopped}
            given_up = {
                rank: f"{why}, for {self._beats[rank].stopped_s:.0f} s"
                for rank, why in stopped.items()
                if self._beats[rank].stopped_s >= self._limit_s
            }
            suspects = {**stopped, **self._silent_for(_MISSED_S)}
            self._last = Heartbeats(self._silent_for(self._limit_s), stopped, given_up, suspects)
        return self._last

    def _silent_for(self, limit_s: float) -> dict[int, str]:
        if self._own is None or self._own.silent_s >= _MISSED_S:
            return {}
        return {
            rank: f"{SILENT} for {beats.silent_s:.0f} s: its node may be lost, or stopped"
            for rank, beats in self._beats.items()
            if beats.have_begun and beats.silent_s >= limit_s
        }


def watch_ranks(paths: RunPaths, step: str, ranks: range, limit_s: float | None, own: Path) -> SilenceWatch:
    """Return a watch over ranks of one step; ``limit_s`` is at least three beats, so two may be missed."""
    limit_s = None if limit_s is None else max(limit_s, 3 * BEAT_S)
    return SilenceWatch({rank: paths.rank_heartbeat(step, rank) for rank in ranks}, limit_s, own)


# Stopped processes and missing sockets while a run goes on: reported early, killed late ------

TROUBLE = "trouble"
"""Name of the event; its data are ``part`` and ``why``, which is ``None`` once the trouble is over."""


class Troubles:
    """Records in a stage's events when a part of the run gets into trouble, and when the trouble ends.

    A file server's pause, a debugger, or Slurm before it cancels a job, stops processes for a moment.
    :meth:`look` is called every :data:`BEAT_S` seconds and counts calls, not seconds, because this process
    may have been suspended, too.
    """

    def __init__(self, paths: RunPaths, stage: str, limit_s: float | None = 45.0) -> None:
        self._paths, self._stage = paths, stage
        self._limit_s = math.inf if limit_s is None else max(limit_s, 3 * BEAT_S)
        self._looks: dict[str, int] = {}
        self._noted: set[str] = set()
        self._next = 0.0

    def is_due(self) -> bool:
        """Return whether :data:`BEAT_S` seconds have passed since this last returned true."""
        now, due = time.monotonic(), self._next
        self._next = now + BEAT_S if now >= due else due
        return now >= due

    def note(self, faults: Mapping[str, str]) -> None:
        """Record the current faults by part, and the end of those that are gone."""
        for part in sorted(self._noted ^ faults.keys()):
            try_event(self._paths, self._stage, TROUBLE, part=part, why=faults.get(part))
        self._noted = set(faults)

    def look(self, faults: Mapping[str, str]) -> dict[str, str]:
        """Record faults seen twice in a row; return, by part, the faults that have lasted for the limit."""
        self._looks = {part: self._looks.get(part, -1) + 1 for part in faults}
        self.note({part: why for part, why in faults.items() if self._looks[part]})
        lasted_s = {part: looks * BEAT_S for part, looks in self._looks.items()}
        late = [part for part in faults if lasted_s[part] >= self._limit_s]
        return {part: f"{faults[part]}, for {lasted_s[part]:.0f} s" for part in late}


def stopped_below(root: int, without: Collection[int] = ()) -> dict[str, str]:
    """Return a sentence about each stopped (SIGSTOP) descendant of a process, by process ID."""
    sentences = {}
    for pid in stopped_descendants(root).keys() - set(without):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            command = " ".join(words).strip()[:100]
            sentences[str(pid)] = f"process {pid} on {os.uname().nodename} is stopped (SIGSTOP): {command}"
    return sentences


def watch_build(paths: RunPaths, pid: int) -> None:
    """Until the batch script ``pid`` is gone, record whether the build is stopped or on a lost node."""
    own, troubles = Heartbeat(paths.rank_heartbeat("build_watch", 0)), Troubles(paths, "build")
    watch = watch_ranks(paths, "build", range(1), None, own.file)
    for _ in seconds_of(pid):
        own.beat()
        why = watch.look().suspects.get(0)
        troubles.note({} if why is None else {"build": f"the build: {why}"})
