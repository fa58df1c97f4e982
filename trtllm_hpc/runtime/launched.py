"""A server that TensorRT-LLM's own launcher starts: ``trtllm-llmapi-launch``.

The launcher joins the ranks of the LLM API. It takes the server's command
line apart at every space, takes ``SLURM_*`` and MPI's variables out of the
server's environment, passes no signal on, and does not end when the server
fails (``tensorrt_llm/llmapi/trtllm-llmapi-launch``, 0.19 to 1.2). So what it is
given to start is this module, under names without spaces; it starts the
server and writes down its process id and its end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from trtllm_hpc.paths import read_json, write_json
from trtllm_hpc.runtime.process import on_signals, start_bound

_AFTER_SERVER_S = 5.0
"""How long the launcher may take to end its workers once the server has ended."""


class LaunchedServer:
    """The launcher's process, with the life and the end of the server that it starts.

    Args:
        launcher: program, e.g. ``trtllm-llmapi-launch``.
        command: the server's command line, with any words.
        scratch: a folder of this rank's own, without spaces in its name.
        runtime: the zipapp.
    """

    def __init__(
        self,
        launcher: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        scratch: Path,
        runtime: Path,
    ) -> None:
        self._files = _Files(scratch)
        write_json(self._files.command, list(command))
        self._files.python.symlink_to(sys.executable)
        self._files.runtime.symlink_to(runtime)
        task = (self._files.python, self._files.runtime, "launched", f"--scratch={scratch}")
        self._launcher = start_bound([launcher, *map(str, task)], environment)
        self._ended_at: float | None = None
        self.returncode = 0

    def poll(self) -> int | None:
        """The exit code of the server, or of the launcher where it starts none (workers); ``None`` before."""
        code = self._files.exit_code()
        launcher_code = self._launcher.poll()
        if code is None:
            # Negative, above 128 or plain: the launcher is a shell, and so is its way to tell of a signal.
            self.returncode = launcher_code if launcher_code is not None else 0
            return launcher_code
        if launcher_code is None and not self._has_had_its_time():
            return None
        if launcher_code is None:
            self.kill()
        self.returncode = code
        return code

    def terminate(self) -> None:
        """Ask the server to end; the launcher passes no signal on."""
        pid = self._files.server_pid()
        with suppress(ProcessLookupError):
            if pid is None:
                self._launcher.terminate()
            else:
                os.kill(pid, signal.SIGTERM)

    def kill(self) -> None:
        """End the launcher; what is left below it is the supervisor's to kill."""
        self._launcher.kill()
        self._launcher.wait()

    def _has_had_its_time(self) -> bool:
        now = time.monotonic()
        self._ended_at = self._ended_at or now
        return now - self._ended_at > _AFTER_SERVER_S


class _Files:
    """What the two processes tell each other, in the rank's scratch folder."""

    def __init__(self, scratch: Path) -> None:
        self.command = scratch / "server.json"
        self.python = scratch / "python"
        self.runtime = scratch / "runtime.pyz"
        self.pid = scratch / "server.pid"
        self.exit = scratch / "server.exit"

    def server_pid(self) -> int | None:
        return self._number(self.pid)

    def exit_code(self) -> int | None:
        return self._number(self.exit)

    def _number(self, file: Path) -> int | None:
        number = read_json(file)
        return number if isinstance(number, int) else None


def run_launched(scratch: Path) -> int:
    """Start the server that ``server.json`` names, as the launcher's task; returns its exit code."""
    files = _Files(scratch)
    command = json.loads(files.command.read_text(encoding="utf-8"))
    try:
        server = start_bound(command, os.environ)
    except OSError as error:
        print(f"error: {command[0]} cannot be started: {error.strerror}.", file=sys.stderr, flush=True)
        write_json(files.exit, 127)
        return 127
    on_signals(lambda _name: server.terminate())
    write_json(files.pid, server.pid)
    code = _wait(server)
    write_json(files.exit, code)
    return code if code >= 0 else 128 - code


def _wait(server: subprocess.Popen[bytes]) -> int:
    while True:
        with suppress(InterruptedError):
            return server.wait()
