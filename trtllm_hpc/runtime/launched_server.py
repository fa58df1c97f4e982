"""Start a server through a launcher (``trtllm-llmapi-launch``, ``mpirun``), or a program outside MPI.

TensorRT-LLM's launcher splits the server's command line at every space, removes ``SLURM_*`` and MPI's
variables, forwards no signal, and does not end when the server fails
(``tensorrt_llm/llmapi/trtllm-llmapi-launch``, 0.19 to 1.2). So the launcher starts this module, under names
without spaces; the module starts the server and records its process ID and exit code. ``mpirun`` starts an
orchestrator's server, which spawns its workers; it kills all others when one fails.

The front of a disaggregated run starts outside Slurm's MPI world. Importing TensorRT-LLM initialises MPI
(``tensorrt_llm/llmapi/disagg_utils.py``, 1.3.0rc3), and Open MPI 4.1 takes a process with Slurm's variables
for a task of the step, and aborts if the step has no PMIx.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import read_json, write_json
from trtllm_hpc.runtime.process import on_signals, start_bound

_AFTER_SERVER_S = 5.0
"""Seconds that the launcher may take to end its workers after the server has ended."""
# Files in the rank's scratch folder, through which the two processes communicate.
_COMMAND, _PID, _EXIT = "server.json", "server.pid", "server.exit"

_ADDRESS = "TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR"
_LOCK = "\0trtllm-hpc-launcher"
"""An abstract Unix socket used as a lock: like ports, it is shared by all users of a network namespace, and
it disappears with its process."""
_PORT_FILE = "launcher_port.json"
_TURN_S = 30.0
"""Seconds to wait for other launchers. After that two may take the same port, which fails with a clear
cause."""
_CHOICE_S = 10.0
"""Seconds that a launcher may take to choose a port."""
_PAUSE_S = 0.05


class LaunchedServer:
    """The launcher's process, with the exit code of the server that the launcher starts.

    Args:
        launcher: words of the launcher's command line, e.g. ``trtllm-llmapi-launch`` or ``mpirun -n 1``.
        command: the server's command line; arguments may contain spaces.
        scratch: this rank's own folder, without spaces in its path.
        runtime: the zipapp.
        chooses_port: whether the launcher chooses a port to be held (``trtllm-llmapi-launch`` on rank 0).
        later: whether a prologue runs before the launcher, so that the port is known only later.
    """

    def __init__(
        self,
        launcher: Sequence[str],
        command: Sequence[str],
        environment: Mapping[str, str],
        scratch: Path,
        runtime: Path,
        *,
        chooses_port: bool,
        later: bool = False,
    ) -> None:
        self._scratch = scratch
        write_json(scratch / _COMMAND, list(command))
        python, zipapp = scratch / "python", scratch / "runtime.pyz"
        python.symlink_to(sys.executable)
        zipapp.symlink_to(runtime)
        task = (python, zipapp, "launched", f"--scratch={scratch}")
        at_once = chooses_port and not later
        with _launchers_turn() if at_once else nullcontext():
            self._launcher = start_bound([*launcher, *map(str, task)], environment)
            self._port = _hold_port(scratch) if at_once else None
        self._is_to_hold = chooses_port and later
        self._ended_at: float | None = None
        self.returncode = 0

    def poll(self) -> int | None:
        """Return the exit code of the server, or of a worker's launcher; ``None`` while it runs."""
        if self._is_to_hold and (self._scratch / _PORT_FILE).exists():
            self._port, self._is_to_hold = _hold_port(self._scratch), False
        code: int | None = read_json(self._scratch / _EXIT)
        launcher_code = self._launcher.poll()
        if code is None:
            # The launcher is a shell script: a signal to the server shows as 128 and its number.
            self.returncode = launcher_code if launcher_code is not None else 0
            return launcher_code
        if launcher_code is None:
            now = time.monotonic()
            self._ended_at = self._ended_at or now
            if now - self._ended_at <= _AFTER_SERVER_S:
                return None
            self.kill()
        self.returncode = code
        return code

    def terminate(self) -> None:
        """Send SIGTERM to the server itself, because the launcher forwards no signal."""
        pid: int | None = read_json(self._scratch / _PID)
        with suppress(ProcessLookupError):
            if pid is None:
                self._launcher.terminate()
            else:
                os.kill(pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the launcher; the rank's supervisor kills the launcher's descendants."""
        self._launcher.kill()
        self._launcher.wait()
        if self._port is not None:
            self._port.close()


def run_launched(scratch: Path) -> int:
    """Start the server that ``server.json`` names, as the launcher's task; return the server's exit code."""
    port = re.search(
        r"^tcp:.*:(\d+)$", os.environ.get(_ADDRESS, "")
    )  # chosen by the launcher, if it needs one
    write_json(scratch / _PORT_FILE, 0 if port is None else int(port[1]))
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


@contextmanager
def _launchers_turn() -> Iterator[None]:
    """Wait until no other launcher on this node is choosing the port that joins its ranks.

    ``trtllm-llmapi-launch`` binds the first free port from 10012 on, releases it, and passes its number to a
    process that binds it half a minute later (0.19 to 1.2; 1.3.0rc3 uses a Unix socket of its own, so there
    is no port to hold). In the meantime another launcher would find the same port. So launchers choose one
    after the other, and each holds its port.
    """
    with socket.socket(socket.AF_UNIX) as turn:
        deadline = time.monotonic() + _TURN_S
        while time.monotonic() < deadline:
            try:
                turn.bind(_LOCK)
                break
            except OSError:
                time.sleep(_PAUSE_S)
        yield


def _hold_port(scratch: Path) -> socket.socket:
    """Hold the port that the launcher has chosen, if it uses one.

    The socket is bound with SO_REUSEADDR and does not listen. Another launcher binds without that option, so
    it finds the port taken. The launcher's own process binds through ZeroMQ, which sets the option and so
    succeeds (Linux, ``inet_csk_bind_conflict``).
    """
    deadline, holder = time.monotonic() + _CHOICE_S, socket.socket()
    while (port := read_json(scratch / _PORT_FILE)) is None and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
    if port:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # the launcher's process listens already
            holder.bind(("", port))
    return holder


_WORLD = ("SLURM_", "PMIX_", "PMI_", "OMPI_")
"""Prefixes of the variables that describe a process's MPI world; upstream's launcher removes the same."""
_LONGEST_HOST = 29
"""Longest host name in bytes that is safe: Open MPI 5 cuts ``singleton.HOST.PID.RANK`` off after 49 bytes,
and then cannot spawn (Open MPI pull request 14398; TensorRT-LLM 19019)."""


def host_variables(environment: Mapping[str, str], host: str) -> dict[str, str]:
    """Return a variable with a short host name for PMIx, if ``host`` is too long and no PMIx server runs."""
    if len(host) <= _LONGEST_HOST or not {"PMIX_HOSTNAME", "PMIX_NAMESPACE"}.isdisjoint(environment):
        return {}
    return {"PMIX_HOSTNAME": f"n-{hashlib.sha256(host.encode()).hexdigest()[:12]}"}


def alone(environment: Mapping[str, str] = os.environ, host: str = os.uname().nodename) -> dict[str, str]:
    """Return ``environment`` without the variables that join MPI to a job step; default: this process's."""
    kept = {name: value for name, value in environment.items() if not name.startswith(_WORLD)}
    return {**kept, **host_variables(kept, host)}


def run_alone(program: Sequence[str]) -> int:
    """Become a program outside any MPI world (exec); returns only if the program cannot be started."""
    try:
        os.execvpe(program[0], list(program), alone())
    except OSError as error:
        host = os.uname().nodename
        print(f"error: {program[0]} cannot be started on {host}: {error.strerror}.", file=sys.stderr)
    return ExitCode.START
