"""The gateway with OpenAI's protocol in front of Triton: started by the first request for it.

Most runs never get one, and a Python with its libraries takes a second of a core and 80 MiB. So the
supervisor listens, and hands its socket to the gateway once somebody has come (as inetd and systemd do).
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.process import start_bound

_BACKLOG = 1024
_MOST_STARTS = 3
"""One that has ended is started so often, each time by the next request."""
_GRACE_S = 10.0


class Gateway:
    """Listens at ``place`` for HAProxy, and starts the gateway."""

    def __init__(self, paths: RunPaths, place: Path) -> None:
        self._paths = paths
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(place))
        self._socket.listen(_BACKLOG)
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0

    def tick(self) -> str | None:
        """Start the gateway if somebody waits for it; returns a sentence once it cannot be."""
        if self._process is not None and self._process.poll() is None:
            return None
        if self._socket.fileno() < 0 or not select.select([self._socket], [], [], 0)[0]:
            return None
        if self._starts == _MOST_STARTS:
            code = None if self._process is None else self._process.returncode
            self._socket.close()  # so that HAProxy refuses requests at once
            return f"the gateway with OpenAI's protocol has ended {self._starts} times, with exit code {code}"
        self._starts += 1
        self._process = self._start()
        return None

    def close(self) -> None:
        """End the gateway, which lets its answers end."""
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
        self._socket.close()

    def _start(self) -> subprocess.Popen[bytes]:
        descriptor = self._socket.fileno()
        command = [sys.executable, "-m", "trtllm_hpc", "gateway", "--run", str(self._paths.folder)]
        log = os.open(self._paths.batch_log("gateway"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            return start_bound([*command, f"--fd={descriptor}"], os.environ, log, (descriptor,))
        finally:
            os.close(log)
