"""What Triton's Python backend leaves to others: models' processes that die, and a folder in /tmp.

The prefix of its shared memory is made in ``rank.sh.j2``.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from trtllm_hpc.runtime.process import descendants, name_of, parent_of, state_of

_NAME = "triton_python_b"
"""What the kernel keeps of ``triton_python_backend_stub``."""
_SEARCH_S = 5.0
_LOOK_S = 1.0
_DEAD_S = 3.0
"""A zombie for so long is not about to be reaped; a server that ends by itself has had time to."""

_FOLDER = Path("/tmp")
_PREFIX = "python_env_"
_LINK = "python_environment"
_SERVER = "tritonserver"
_PAUSE_S = 0.05
"""A server that is told to end while it loads its models dies at once: its folder is to be known by then."""
_START_S = 60.0
_LATER_PAUSE_S = 1.0
_MOST_LOOKS = 3
"""How often a folder is looked for in the server's memory: it may be there before its path is stored."""
_LARGEST_REGION = 32 << 20
"""Bytes. The path is on a thread's heap, small while models load; what is larger is a stack or a buffer."""


class ModelProcesses:
    """The processes of a server's Python models, which are descendants of this process.

    Triton does not miss one that dies: it goes on saying that it is ready, and each request for the model
    fails after a second's wait (2.51). It never waits for such a child, which so stays a zombie; a model that
    is unloaded leaves none.
    """

    def __init__(self) -> None:
        self._models: dict[int, str] = {}
        self._dead_since: dict[int, float] = {}
        self._search_at = self._look_at = 0.0

    def dead(self) -> str | None:
        """Return a model of which a process has died by itself. May be called often."""
        now = time.monotonic()
        if now < self._look_at:
            return None
        self._look_at = now + _LOOK_S
        if now >= self._search_at:
            self._search_at = now + _SEARCH_S
            self._search()
        for pid in list(self._models):
            state = state_of(pid)
            if state is None:
                del self._models[pid]
                self._dead_since.pop(pid, None)
            elif state == "Z" and now - self._dead_since.setdefault(pid, now) >= _DEAD_S:
                return self._models[pid]
        return None

    def _search(self) -> None:
        own = os.getpid()
        for pid in descendants(own):
            # What such a process has forked looks the same, and is the model's own matter; once its parent
            # has died, it is a child of this process.
            if pid in self._models or (parent := parent_of(pid)) in (own, None) or name_of(parent) == _NAME:
                continue
            with suppress(OSError):
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
                if name_of(pid) == _NAME and len(arguments) > 1:
                    # Its first argument is MODEL/VERSION/model.py.
                    self._models[pid] = Path(arguments[1]).parent.parent.name


class PythonEnvironment:
    """Finds a server's folder in /tmp in a thread, and links it in ``scratch``, the rank's own folder.

    The backend makes it for models' packed environments, whatever ``TMPDIR`` says (``pb_env.cc``,
    ``EnvironmentManager``; 2.51), under a name that does not show whose it is. A server whose folder is gone
    aborts when it ends, and two may share ``/tmp``. So the supervisor looks for its path in the server's
    memory (proc(5)).
    """

    def __init__(self, scratch: Path) -> None:
        self._link = scratch / _LINK
        self._others = set(_own_folders())
        self._looks: Counter[Path] = Counter()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="python environment", daemon=True)

    def begin(self) -> None:
        """Look for a folder that is new since this was made; the server is this process's descendant."""
        self._thread.start()

    def end(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        start_over = time.monotonic() + _START_S
        while not self._over.wait(_PAUSE_S if time.monotonic() < start_over else _LATER_PAUSE_S):
            if self._find():
                return

    def _find(self) -> bool:
        new = [folder for folder in _own_folders() if folder not in self._others]
        if not new:
            return False
        servers = [pid for pid in descendants(os.getpid()) if name_of(pid) == _SERVER]
        for folder in new:
            if any(_holds(pid, os.fsencode(folder)) for pid in servers):
                self._link.symlink_to(folder)
                return True
            self._looks[folder] += 1
        self._others |= {folder for folder, looks in self._looks.items() if looks == _MOST_LOOKS}
        return False


def environment_of(scratch: Path) -> Path | None:
    """Return the folder of a rank's server, which has ended; another user's does not count."""
    with suppress(OSError):
        folder = (scratch / _LINK).readlink()
        if (
            scratch.lstat().st_uid == folder.lstat().st_uid
            and folder.parent == _FOLDER
            and folder.name.startswith(_PREFIX)
        ):
            return folder
    return None


def _own_folders() -> Iterator[Path]:
    with suppress(OSError), os.scandir(_FOLDER) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.name.startswith(_PREFIX) and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                    yield Path(entry.path)


def _holds(pid: int, text: bytes) -> bool:
    """Return whether a process's heap holds a text; no, where the system forbids to read it."""
    with suppress(OSError), Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for start, size in _heap(pid):
            with suppress(OSError):  # unmapped since the list of regions was read
                if text in os.pread(memory.fileno(), size, start):
                    return True
    return False


def _heap(pid: int) -> Iterator[tuple[int, int]]:
    """Yield start and size of each region of /proc/PID/maps that may be a part of the heap."""
    for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        addresses, mode, _, _, _, *name = line.split(maxsplit=5)
        start, end = (int(address, 16) for address in addresses.split("-"))
        if mode.startswith("rw") and name in ([], ["[heap]"]) and end - start <= _LARGEST_REGION:
            yield start, end - start
