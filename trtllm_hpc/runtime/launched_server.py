"""Start a server through a launcher: ``trtllm-llmapi-launch``, or Open MPI's ``mpirun``.

TensorRT-LLM's launcher joins the ranks of the LLM API. It splits the server's command line
at every space, removes ``SLURM_*`` and MPI's variables from the server's environment, passes
no signal on, and does not end when the server fails
(``tensorrt_llm/llmapi/trtllm-llmapi-launch``, 0.19 to 1.2). So it is given this module to
start, under names without spaces, which starts the server and records its process id and exit.

The same for Open MPI's ``mpirun``, through which an orchestrator's server can spawn its workers: it kills all
that it has started when one of them fails.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from trtllm_hpc.paths import read_json, write_json
from trtllm_hpc.runtime.alone import host_variables
from trtllm_hpc.runtime.launcher_port import LauncherPort, note_port
from trtllm_hpc.runtime.process import on_signals, start_bound

_AFTER_SERVER_S = 5.0
"""How long the launcher may take to end its workers after the server has ended."""


class LaunchedServer:
    """The launcher's process, with the exit code of the server that it starts.

    Args:
        launcher: program and options, e.g. ``trtllm-llmapi-launch`` or ``mpirun -n 1``.
        command: the server's command line; arguments may contain spaces.
        scratch: this rank's own folder, without spaces in its name.
        runtime: the zipapp.
        chooses_port: whether the launcher chooses a port that is used: ``trtllm-llmapi-launch`` of rank 0.
    """

    def __init__(
        self,
        launcher: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        scratch: Path,
        runtime: Path,
        *,
        chooses_port: bool,
    ) -> None:
        self._scratch = scratch
        write_json(scratch / _COMMAND, list(command))
        python, zipapp = scratch / "python", scratch / "runtime.pyz"
        python.symlink_to(sys.executable)
        zipapp.symlink_to(runtime)
        task = (python, zipapp, "launched", f"--scratch={scratch}")
        port = LauncherPort(scratch) if chooses_port else None
        self._launcher = start_bound([*shlex.split(launcher), *map(str, task)], environment)
        if port is not None:
            port.hold()
        self._port = port
        self._ended_at: float | None = None
        self.returncode = 0

    def poll(self) -> int | None:
        """Return the exit code of the server, or of a worker's launcher without one; ``None`` before."""
        code = _read_number(self._scratch / _EXIT)
        launcher_code = self._launcher.poll()
        if code is None:
            # Negative, above 128 or plain: the launcher is a shell script and reports signals as shells do.
            self.returncode = launcher_code if launcher_code is not None else 0
            return launcher_code
        if launcher_code is None and not self._is_overdue():
            return None
        if launcher_code is None:
            self.kill()
        self.returncode = code
        return code

    def terminate(self) -> None:
        """Signal the server to end, since the launcher passes no signal on."""
        pid = _read_number(self._scratch / _PID)
        with suppress(ProcessLookupError):
            if pid is None:
                self._launcher.terminate()
            else:
                os.kill(pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the launcher; the supervisor kills its descendants."""
        self._launcher.kill()
        self._launcher.wait()
        if self._port is not None:
            self._port.release()

    def _is_overdue(self) -> bool:
        now = time.monotonic()
        self._ended_at = self._ended_at or now
        return now - self._ended_at > _AFTER_SERVER_S


# Files in the rank's scratch folder, through which the two processes communicate.
_COMMAND, _PID, _EXIT = "server.json", "server.pid", "server.exit"


def _read_number(file: Path) -> int | None:
    number = read_json(file)
    return number if isinstance(number, int) else None


def run_launched(scratch: Path) -> int:
    """Start the server that ``server.json`` names, as the launcher's task; returns its exit code."""
    note_port(scratch)
    command = json.loads((scratch / _COMMAND).read_text(encoding="utf-8"))
    try:
        server = start_bound(command, {**os.environ, **host_variables(os.environ, os.uname().nodename)})
    except OSError as error:
        print(f"error: {command[0]} cannot be started: {error.strerror}.", file=sys.stderr, flush=True)
        write_json(scratch / _EXIT, 127)
        return 127
    on_signals(lambda _name: server.terminate())
    write_json(scratch / _PID, server.pid)
    code = server.wait()
    write_json(scratch / _EXIT, code)
    return code if code >= 0 else 128 - code
