"""What lives: heartbeats, and what stands still.

A heartbeat is a file that its owner changes every few seconds: of each rank its supervisor, the run's
supervisor, the companion and a build. Only changes count, and the reader's own clock times them: a node's
clock may be off by an hour. A long pause of the reader counts as two looks only, since then it, or the file
server under all of them, may have been suspended itself.
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
SILENT = "it has given no sign of life"
"""How a rank without a heartbeat is described; node names are read from such a sentence."""
_MISSED_S = 2.5 * BEAT_S
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
class _Beats:
    """The beats of one heartbeat, as its reader has seen them."""

    content: str
    have_begun: bool = False
    """Whether there was a beat since the first look."""
    silent_s: float = 0.0
    stopped_s: float = 0.0

    def look(self, content: str, passed_s: float) -> None:
        """Take in the file's content, and the time since the look before."""
        self.silent_s += passed_s
        if content != self.content:
            self.content, self.silent_s, self.have_begun = content, 0.0, True
        self.stopped_s = self.stopped_s + passed_s if self.stopped else 0.0

    @property
    def stopped(self) -> str:
        """The processes that are stopped, by the last beat, as the end of a sentence; empty: none."""
        processes = self.content.strip().partition(" ")[2]
        words = "processes" if ", " in processes else "process"
        are = "are" if ", " in processes else "is"
        return f"its {words} {processes} {are} stopped (SIGSTOP)" if processes else ""


class SilenceWatch:
    """Notices that ranks are silent, or have a stopped process, for ``limit_s``.

    A rank that has not begun to beat is not silent. Without ``limit_s`` no rank is silent or given up.

    While the reader's ``own`` heartbeat does not change, the file system is full or gone, and silence says
    nothing.
    """

    def __init__(self, files: Mapping[int, Path], limit_s: float | None, own: Path) -> None:
        self._files, self._own_file = files, own
        self._limit_s = math.inf if limit_s is None else limit_s
        self._own: _Beats | None = None
        self._beats: dict[int, _Beats] = {}
        self._looked_at: float | None = None
        self._last = ALL_WELL

    def has_begun(self, rank: int) -> bool:
        """Return whether a rank has given a sign of life since the first look."""
        return rank in self._beats and self._beats[rank].have_begun

    def look(self) -> Heartbeats:
        """Read the heartbeats, at most once a second; in between the result is the last one."""
        now = time.monotonic()
        if self._looked_at is None or now - self._looked_at >= 1.0:
            passed_s = 0.0 if self._looked_at is None else min(now - self._looked_at, 2.0)
            self._looked_at = now
            with suppress(OSError):  # this node does not see the file system: nothing about the others
                with suppress(FileNotFoundError):
                    content = self._own_file.read_text(encoding="utf-8", errors="replace")
                    self._own = self._own or _Beats(content)
                    self._own.look(content, passed_s)
                for rank, file in self._files.items():
                    try:
                        content = file.read_text(encoding="utf-8", errors="replace")
                        self._beats.setdefault(rank, _Beats(content)).look(content, passed_s)
                    except FileNotFoundError:
                        self._beats.setdefault(rank, _Beats(""))  # its first beat will be a change
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
    """Return a watch over ranks of one step, which may miss two beats in any case."""
    limit_s = None if limit_s is None else max(limit_s, 3 * BEAT_S)
    return SilenceWatch({rank: paths.rank_heartbeat(step, rank) for rank in ranks}, limit_s, own)


# What stands still while a run goes on: named early, given up late ------------------------

TROUBLE = "trouble"
"""Name of the event; its data are ``part`` and ``why``, which is ``None`` once the trouble is over."""


class Troubles:
    """Notes what stands still in a stage's events, when that begins and when it ends.

    A file server's pause, a debugger, or Slurm on its way to cancel, stops processes for a moment.
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
            try_event(self._paths, self._stage, TROUBLE, part=part, why=faults.get(part))
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
    sentences = {}
    for pid in stopped_descendants(root).keys() - set(without):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            command = " ".join(words).strip()[:100]
            sentences[str(pid)] = f"process {pid} on {os.uname().nodename} is stopped (SIGSTOP): {command}"
    return sentences


def watch_build(paths: RunPaths, pid: int) -> None:
    """Note a build that is stopped, or on a lost node, until the batch script, process ``pid``, is gone."""
    own, troubles = Heartbeat(paths.rank_heartbeat("build_watch", 0)), Troubles(paths, "build")
    watch = watch_ranks(paths, "build", range(1), None, own.file)
    for _ in seconds_of(pid):
        own.beat()
        why = watch.look().suspects.get(0)
        troubles.note({} if why is None else {"build": f"the build: {why}"})
