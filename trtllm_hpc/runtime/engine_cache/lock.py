"""One builder at a time for each entry, on a file system that several nodes share.

``lock.<n>`` is made with ``O_CREAT | O_EXCL``, which every network file system
does atomically, unlike ``flock``. Its owner counts up the number on its first
line; who waits watches that number by its own clock, never comparing the clocks
of two nodes. An owner that falls silent is taken for dead, and the next one
makes ``lock.<n + 1>``: only the highest owns. Numbers are never given twice, so
an owner that was only paused finds on waking that it owns nothing any more; and
it can destroy nothing, as its unfinished work lies in a folder of its own and
``rename`` never replaces a finished one.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trtllm_hpc.runtime.process import start_ticks

BEAT_VARIABLE = "TRTLLM_HPC_LOCK_BEAT_SECONDS"
DEAD_VARIABLE = "TRTLLM_HPC_LOCK_DEAD_SECONDS"
POLL_VARIABLE = "TRTLLM_HPC_LOCK_POLL_SECONDS"

_DEFAULTS = {BEAT_VARIABLE: 5.0, DEAD_VARIABLE: 60.0, POLL_VARIABLE: 1.0}

_COUNTER_BYTES = 12
_RELEASED = b"released    "
assert len(_RELEASED) == _COUNTER_BYTES
_RECORD_BYTES = 2**16
"""More than an owner's record can have: the longest of it is a path."""


def seconds(variable: str) -> float:
    """One of the times above; the environment may set another."""
    return float(os.environ.get(variable) or _DEFAULTS[variable])


@dataclass(frozen=True)
class Owner:
    """Who builds, for others to read."""

    host: str
    machine: str
    """Boot and PID namespace: only there does ``pid`` mean this process."""
    pid: int
    ticks: int | None
    """When that process started, against reuse of its number."""
    job_id: str
    run: str
    step: str
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    since: float = field(default_factory=time.time)
    """Seconds since the epoch by the owner's clock: for people, never for a decision."""

    @classmethod
    def this_process(cls, step: str, run: str, job_id: str) -> Owner:
        """This process as an owner."""
        pid = os.getpid()
        return cls(socket.gethostname(), _machine(), pid, start_ticks(pid), job_id, run, step)

    def is_dead(self) -> bool:
        """Whether its process is known to be gone; ``False`` if that cannot be seen from here."""
        if (self.host, self.machine) != (socket.gethostname(), _machine()):
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            # Somebody else's, and /proc may hide it: only other start times tell.
            ticks = start_ticks(self.pid)
            return ticks is not None and ticks != self.ticks
        return start_ticks(self.pid) != self.ticks

    def __str__(self) -> str:
        job = f"job {self.job_id} on " if self.job_id else ""
        return f"{job}{self.host}"


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return secrets.token_hex(8)  # nothing can be compared with it


@dataclass(frozen=True)
class Held:
    """A lock as somebody else sees it."""

    generation: int
    counter: bytes
    owner: Owner | None
    """``None`` while its file is being written, or if it was cut short."""

    @property
    def is_released(self) -> bool:
        """Whether its owner has given it back."""
        return self.counter == _RELEASED


def highest(folder: Path) -> Held | None:
    """The lock that counts in an entry's folder; ``None`` if there never was one."""
    try:
        names = [path.name for path in folder.iterdir() if path.name.startswith("lock.")]
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    numbers = [int(number) for name in names if (number := name.removeprefix("lock.")).isdigit()]
    return _read(folder, max(numbers)) if numbers else None


def _read(folder: Path, generation: int) -> Held:
    try:
        text = (folder / f"lock.{generation}").read_bytes()
    except OSError:
        text = b""
    counter, record = text[:_COUNTER_BYTES], text[_COUNTER_BYTES:]
    try:
        return Held(generation, counter, Owner(**json.loads(record)))
    except (ValueError, TypeError):
        return Held(generation, counter, None)


def living_owner(folder: Path) -> Held | None:
    """Who holds the entry, as far as one look can tell; a silent owner still counts."""
    held = highest(folder)
    if held is None or held.is_released or (held.owner is not None and held.owner.is_dead()):
        return None
    return held


class Watch:
    """Decides whether the owner of a lock lives, by looking again and again.

    Only time between two looks counts, and of a long gap only a little: when
    this process, or the file system under both, has stood still, the owner's
    silence means nothing.
    """

    def __init__(self) -> None:
        self._seen: tuple[int, bytes] | None = None
        self._silent_s = 0.0
        self._looked = 0.0

    def is_free(self, held: Held | None) -> bool:
        """Whether the entry may be taken over, after this look."""
        if held is None or held.is_released:
            return True
        now = time.monotonic()
        step = min(now - self._looked, 2 * seconds(POLL_VARIABLE))
        self._looked = now
        if self._seen != (held.generation, held.counter):
            self._seen, self._silent_s = (held.generation, held.counter), 0.0
        else:
            self._silent_s += step
        if held.owner is not None and held.owner.is_dead():
            return True
        return self._silent_s >= seconds(DEAD_VARIABLE)


class Lock:
    """A lock that this process holds. Made by :func:`try_lock`."""

    def __init__(self, folder: Path, generation: int, owner: Owner) -> None:
        self.folder, self.generation, self.owner = folder, generation, owner
        self._stop = threading.Event()
        self._lost = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lock", daemon=True)
        self._thread.start()

    @property
    def is_lost(self) -> bool:
        """Whether somebody else has been seen to own the entry by now."""
        return self._lost.is_set()

    def is_mine(self) -> bool:
        """Look whether this lock still is the highest; one that cannot be read is not lost by that."""
        held = highest(self.folder)
        owner = held.owner if held is not None else None
        mine = owner is not None and owner.token == self.owner.token
        unreadable = held is not None and held.generation == self.generation and owner is None
        if not (mine or unreadable):
            self._lost.set()
        return mine and not self.is_lost

    def release(self) -> None:
        """Give it back: who waits need not wait for the silence."""
        self._stop.set()
        self._thread.join()
        with suppress(OSError):
            self._put(_RELEASED)

    def _beat(self) -> None:
        count = 0
        while not self._stop.wait(seconds(BEAT_VARIABLE)):
            count += 1
            # A full disk or a server that is away for a moment is no reason to give up: if it
            # lasts, the others will take this owner for dead, and rightly so.
            with suppress(OSError):
                self._put(b"%0*d" % (_COUNTER_BYTES, count))
            with suppress(OSError):
                self.is_mine()

    def _put(self, counter: bytes) -> None:
        # In place, and not aside and renamed: opening a file that another node has changed
        # always asks an NFS server, but a renamed one may hide behind a cached folder for a minute.
        handle = os.open(self.folder / f"lock.{self.generation}", os.O_RDWR)
        try:
            # The entry may have been removed and made anew: the number is another's then.
            if self.owner.token.encode() not in os.pread(handle, _RECORD_BYTES, _COUNTER_BYTES):
                self._lost.set()
                return
            os.pwrite(handle, counter, 0)
            os.fsync(handle)
        finally:
            os.close(handle)


def try_lock(folder: Path, owner: Owner, watch: Watch) -> Lock | Held:
    """Take the entry if nobody who lives holds it; else who does.

    Raises:
        FileNotFoundError: the entry's folder is gone.
    """
    held = highest(folder)
    if held is not None and not watch.is_free(held):
        return held
    generation = 1 if held is None else held.generation + 1
    path = folder / f"lock.{generation}"
    mode = folder.stat().st_mode & 0o666
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        return _read(folder, generation)  # somebody was faster
    try:
        os.write(handle, b"%0*d" % (_COUNTER_BYTES, 0) + json.dumps(asdict(owner)).encode() + b"\n")
        os.fsync(handle)
    except OSError:
        path.unlink(missing_ok=True)  # nobody has owned by this number yet
        raise
    finally:
        os.close(handle)
    return Lock(folder, generation, owner)
