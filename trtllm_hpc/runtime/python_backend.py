"""What Triton's Python backend leaves to others: models' processes that die."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from trtllm_hpc.runtime.process import descendants, name_of, parent_of, state_of

_NAME = "triton_python_b"
"""What the kernel keeps of ``triton_python_backend_stub``."""
_SEARCH_S = 5.0
_LOOK_S = 1.0
_DEAD_S = 3.0
"""A zombie for so long is not about to be reaped; a server that ends by itself has had time to."""


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
