"""One builder at a time for each cache entry, on a file system that several nodes share.

A builder's own folder is the lock. It is prepared under another name and renamed to ``building``::

    building/<token>/owner.json    who builds; its time is set anew every few seconds (the heartbeat)
                     output/       what the step makes, until it is published

``rename`` replaces an empty folder and fails for any other. Network file systems do it
atomically too, whereas ``flock`` over NFS depends on the mount. A builder whose heartbeat
stops is taken for dead: its successor moves ``building/<token>`` away. The token makes that
safe at any moment: the move cannot hit another builder's folder, and a builder that was only
suspended finds its own gone when it wakes up, so it can neither publish nor do harm.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import socket
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from trtllm_hpc.runtime.engine_cache.files import make_shared, remove, write_shared
from trtllm_hpc.runtime.process import start_ticks

BEAT_VARIABLE = "TRTLLM_HPC_LOCK_BEAT_SECONDS"
DEAD_VARIABLE = "TRTLLM_HPC_LOCK_DEAD_SECONDS"
POLL_VARIABLE = "TRTLLM_HPC_LOCK_POLL_SECONDS"
_DEFAULTS = {BEAT_VARIABLE: 5.0, DEAD_VARIABLE: 60.0, POLL_VARIABLE: 1.0}

_ABANDONED = 10
"""Multiple of the time after which the next builder takes over."""

LOCK_FOLDER = "building"
_OWNER = "owner.json"


def seconds(variable: str) -> float:
    """Return one of the times above, which the environment may override."""
    return float(os.environ.get(variable) or _DEFAULTS[variable])


@dataclass(frozen=True)
class Owner:
    """The process that builds."""

    host: str
    machine: str
    """Boot and PID namespace; ``pid`` means this process only there."""
    pid: int
    ticks: int | None
    """Start time of the process: a PID alone may be reused."""
    job_id: str

    @classmethod
    def this_process(cls, job_id: str) -> Owner:
        """Return this process as an owner."""
        pid = os.getpid()
        return cls(socket.gethostname(), _machine(), pid, start_ticks(pid), job_id)

    def is_dead(self) -> bool:
        """Return whether the process is known to be gone; ``False`` if that cannot be seen from here."""
        if (self.host, self.machine) != (socket.gethostname(), _machine()):
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            # Another user's process. /proc may hide it, so that only a different start time is proof.
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
        return secrets.token_hex(8)  # equal to nothing


@dataclass(frozen=True)
class Holder:
    """The builder that holds an entry, as other processes see it."""

    token: str
    owner: Owner | None
    """``None`` if its record cannot be read."""
    beat_ns: int
    """Time of its last heartbeat by the file server's clock. Only changes of it mean anything."""

    def is_dead(self) -> bool:
        """Return whether the builder is certainly gone."""
        # Without a record it is a folder that a process of a dead build has made again.
        return not self.beat_ns or (self.owner is not None and self.owner.is_dead())

    @property
    def silent_s(self) -> float:
        """Seconds since its last heartbeat, by this machine's clock."""
        return time.time() - self.beat_ns / 1e9

    def is_abandoned(self) -> bool:
        """Return whether the builder is probably gone: dead, or silent for long by this machine's clock.

        For cleaning up only, where patience costs nothing: clocks of two nodes may differ.
        """
        return self.is_dead() or self.silent_s > _ABANDONED * seconds(DEAD_VARIABLE)

    def __str__(self) -> str:
        return str(self.owner) if self.owner is not None else "another process"


def find_holder(folder: Path) -> Holder | None:
    """Return who holds an entry's folder, dead or alive; ``None`` if nobody does."""
    try:
        found = [_read_holder(path) for path in (folder / LOCK_FOLDER).iterdir()]
    except OSError:
        return None
    return max(found, key=lambda holder: holder.beat_ns, default=None)


def _read_holder(path: Path) -> Holder:
    beat_ns = 0
    try:
        with (path / _OWNER).open(encoding="utf-8") as file:  # NFS asks the server when a file is opened
            beat_ns = os.fstat(file.fileno()).st_mtime_ns
            return Holder(path.name, Owner(**json.load(file)), beat_ns)
    except (FileNotFoundError, NotADirectoryError):
        return Holder(path.name, None, 0)
    except (OSError, ValueError, TypeError):
        return Holder(path.name, None, beat_ns or 1)


class Watch:
    """Decides by repeated looks whether the holder of an entry is alive.

    Clocks of two nodes are never compared: this process counts the time in which the
    heartbeat did not change. Of a long pause between two looks only a little counts, since
    then this process, or the file server under both, may have been suspended itself.
    """

    def __init__(self) -> None:
        self._last: tuple[str, int] | None = None
        self._silent_s = 0.0
        self._looked_at = 0.0

    def is_dead(self, holder: Holder) -> bool:
        """Return whether the entry may be taken over after this look."""
        now = time.monotonic()
        passed_s = min(now - self._looked_at, 2 * seconds(POLL_VARIABLE))
        self._looked_at = now
        if self._last == (holder.token, holder.beat_ns):
            self._silent_s += passed_s
        else:
            self._last, self._silent_s = (holder.token, holder.beat_ns), 0.0
        return holder.is_dead() or self._silent_s >= seconds(DEAD_VARIABLE)


class Lock:
    """A lock that this process holds. Made by :func:`try_lock`."""

    def __init__(self, folder: Path, token: str) -> None:
        self._folder, self._token = folder, token
        self.work = folder / LOCK_FOLDER / token
        """The builder's own folder; it is gone once the lock is lost."""
        self._record = self.work / _OWNER
        self._stop = threading.Event()
        self._lost = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lock", daemon=True)
        self._thread.start()

    @property
    def is_lost(self) -> bool:
        """Whether another builder is known to have taken over."""
        return self._lost.is_set()

    def is_mine(self) -> bool:
        """Look whether this process still holds the entry."""
        try:
            os.close(os.open(self._record, os.O_RDONLY))
        except (FileNotFoundError, NotADirectoryError):
            self._lost.set()
        except OSError:
            return False  # a file server that is away for a moment has taken nothing
        return not self.is_lost

    def release(self) -> None:
        """Give the entry back, and remove what is left in the builder's folder."""
        self._stop.set()
        self._thread.join()
        evict(self._folder, self._token)

    def _beat(self) -> None:
        while not self._stop.wait(seconds(BEAT_VARIABLE)):
            if self.is_mine():
                with suppress(OSError):  # if it lasts, the others take this builder for dead
                    os.utime(self._record)


def try_lock(folder: Path, owner: Owner, watch: Watch) -> Lock | Holder:
    """Take an entry's folder, or return who holds it.

    Raises FileNotFoundError if the entry was removed meanwhile; OSError if the file system refused.
    """
    holder = find_holder(folder)
    if holder is not None:
        if not watch.is_dead(holder):
            return holder
        evict(folder, holder.token)
    token = secrets.token_hex(8)
    prepared = folder / f".{LOCK_FOLDER}.{token}"
    try:
        make_shared(prepared)
        make_shared(prepared / token)
        write_shared(prepared / token / _OWNER, asdict(owner))
        with suppress(OSError):
            (folder / LOCK_FOLDER).rmdir()  # left empty by a builder that was killed while it released
        prepared.rename(folder / LOCK_FOLDER)
    except OSError as error:
        remove(prepared)
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return find_holder(folder) or Holder(token, None, 1)  # another process was faster
    return Lock(folder, token)


def evict(folder: Path, token: str) -> None:
    """Move a builder's folder out of ``building`` in one piece, then remove it."""
    aside = folder / f".{LOCK_FOLDER}.{token}.{secrets.token_hex(4)}"
    with suppress(OSError):
        (folder / LOCK_FOLDER / token).rename(aside)
    with suppress(OSError):
        (folder / LOCK_FOLDER).rmdir()
    remove(aside)
