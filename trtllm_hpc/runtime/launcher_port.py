"""The port through which ``trtllm-llmapi-launch`` joins its ranks: two launchers on a node must not take one.

The launcher looks for the first port from 10012 on that it can bind, lets it go, and passes it on to a
process that binds it half a minute later (``tensorrt_llm/llmapi/trtllm-llmapi-launch``, 0.19 to 1.2; in
1.3.0rc3 it takes a Unix socket of its own instead, and there is nothing to hold).
Another launcher that looks in the meantime finds the same one. So launchers start one after the other, and
each one's port is held as long as this process lives: by a socket that is bound with SO_REUSEADDR and does
not listen. The launcher's look, without that option, finds the port taken; ZeroMQ, with which the process
binds it, sets the option (Linux, ``inet_csk_bind_conflict``).
"""

from __future__ import annotations

import os
import re
import socket
import time
from contextlib import suppress
from pathlib import Path

from trtllm_hpc.paths import read_json, write_json

_ADDRESS = "TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR"
_LOCK = "\0trtllm-hpc-launcher"
"""An abstract Unix socket: of the network namespace, as ports are, for all users; it ends with a process."""
_FILE = "launcher_port.json"
_TURN_S = 30.0
"""How long to wait for other launchers. After that two may take one port, which fails with a clear cause."""
_CHOICE_S = 10.0
"""How long a launcher may take to choose."""
_PAUSE_S = 0.05


class LauncherPort:
    """Waits for its turn when made; the launcher is started after that, and ``hold`` called.

    Args:
        scratch: the rank's own folder.
    """

    def __init__(self, scratch: Path) -> None:
        self._file = scratch / _FILE
        self._held = socket.socket()
        self._turn = socket.socket(socket.AF_UNIX)
        deadline = time.monotonic() + _TURN_S
        while time.monotonic() < deadline:
            try:
                self._turn.bind(_LOCK)
                return
            except OSError:
                time.sleep(_PAUSE_S)

    def hold(self) -> None:
        """Hold the port that the launcher has chosen, if it takes one, and let the next launcher begin."""
        deadline = time.monotonic() + _CHOICE_S
        while (port := read_json(self._file)) is None and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
        if port:
            self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):  # it listens already
                self._held.bind(("", port))
        self._turn.close()

    def release(self) -> None:
        """Let go of the port."""
        self._turn.close()
        self._held.close()


def note_port(scratch: Path) -> None:
    """Write down the port that the launcher has chosen, 0 if none, as the process that it has started."""
    found = re.search(r"^tcp:.*:(\d+)$", os.environ.get(_ADDRESS, ""))
    write_json(scratch / _FILE, 0 if found is None else int(found[1]))
