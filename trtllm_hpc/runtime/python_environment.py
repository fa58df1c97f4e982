"""The folder that Triton's Python backend makes in /tmp, and that a killed server leaves there.

The backend makes it for models' packed environments, whatever ``TMPDIR`` says (``pb_env.cc``,
``EnvironmentManager``; 2.51), under a name that does not show whose it is. A server whose folder is gone
aborts when it ends, and two may share ``/tmp``. So the supervisor looks for its path in the server's memory
(proc(5)).
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from trtllm_hpc.runtime.process import descendants, name_of

_FOLDER = Path("/tmp")
_PREFIX = "python_env_"
_LINK = "python_environment"
_SERVER = "tritonserver"
_PAUSE_S = 0.05
"""A server that is told to end while it loads its models dies at once: its folder is to be known by then."""
_START_S = 60.0
_LATER_PAUSE_S = 1.0
_LOOKS = 3
"""How often a folder is looked for in the server's memory: it may be there before its path is stored."""
_LARGEST_REGION = 32 << 20
"""Bytes. The path is on a thread's heap, small while models load; what is larger is a stack or a buffer."""


class PythonEnvironment:
    """Finds the folder of a rank's server in a thread, and links it in the rank's folder, ``scratch``."""

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
        self._others |= {folder for folder, looks in self._looks.items() if looks == _LOOKS}
        return False


def environment_of(scratch: Path) -> Path | None:
    """Return the folder of a rank's server, which has ended; another user's link does not count."""
    with suppress(OSError):
        folder = (scratch / _LINK).readlink()
        if (
            scratch.lstat().st_uid == os.getuid()
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
