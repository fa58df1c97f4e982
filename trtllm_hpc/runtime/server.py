"""Find and start ``tritonserver``: the container's, a wheel's, or through a launcher.

TensorRT-LLM's launcher joins the ranks of the LLM API. It splits the server's command line
at every space, removes ``SLURM_*`` and MPI's variables from the server's environment, passes
no signal on, and does not end when the server fails
(``tensorrt_llm/llmapi/trtllm-llmapi-launch``, 0.19 to 1.2). So it is given this module to
start, under names without spaces, which starts the server and records its process id and exit.

The same for Open MPI's ``mpirun``, through which an orchestrator's server can spawn its workers: it kills all
that it has started when one of them fails.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import signal
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trtllm_hpc.errors import StartFailed
from trtllm_hpc.paths import read_json, write_json
from trtllm_hpc.runtime.alone import host_variables
from trtllm_hpc.runtime.launcher_port import LauncherPort, note_port
from trtllm_hpc.runtime.process import on_signals, start_bound

WHEEL = "pytriton"
"""Value of ``triton.server`` for the server in the nvidia-pytriton wheel."""

_AFTER_SERVER_S = 5.0
"""How long the launcher may take to end its workers after the server has ended."""


@dataclass(frozen=True)
class Server:
    """How to start the server on this node."""

    program: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    """Variables that override the task's own."""


def find_server(server: str, scratch: Path) -> Server:
    """Return the server that the profile names.

    Args:
        scratch: this rank's own folder, for files that the server needs.

    Raises:
        StartFailed: this node does not have it.
    """
    if server == WHEEL:
        return _from_wheel(scratch)
    program = shutil.which(server)
    if program is None:
        raise StartFailed(
            f"there is no program {server!r} on {os.uname().nodename}",
            hint="set triton.server in the cluster profile, or container.image to an image that has it",
        )
    return Server(program, (), {})


def _from_wheel(scratch: Path) -> Server:
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or spec.origin is None:
        raise StartFailed(
            f"{sys.executable} has no nvidia-pytriton, but triton.server in the profile is pytriton",
            hint="pip install 'trtllm-hpc[reference]' there, or set triton.server in the cluster profile",
        )
    home = Path(spec.origin).parent / "tritonserver"
    backend = scratch / "backends" / "python"
    backend.mkdir(parents=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    # Links and not copies: the stub finds its libraries beside its real place.
    for source in (home / "backends" / "python").iterdir():
        (backend / source.name).symlink_to(source)
    stub = backend / "triton_python_backend_stub"
    stub.unlink(missing_ok=True)
    stub.symlink_to(home / "python_backend_stubs" / version / stub.name)
    libraries = [str(_libpython(scratch / "lib", version)), os.environ.get("LD_LIBRARY_PATH", "")]
    environment = {
        # The stub starts in isolated mode: the first python3 on PATH decides its environment.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
    }
    program = str(home / "bin" / "tritonserver")
    return Server(program, (f"--backend-directory={backend.parent}",), environment)


def _libpython(folder: Path, version: str) -> Path:
    """A folder with this Python's shared library, which the stub needs, and nothing else.

    Python's own folder may hold all of the system's libraries, and on
    ``LD_LIBRARY_PATH`` these would go before those in wheels: the system's
    cuDNN before the one that PyTorch was built for.
    """
    folder.mkdir(exist_ok=True)
    for source in Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib").glob(f"libpython{version}*.so*"):
        with suppress(FileExistsError):
            (folder / source.name).symlink_to(source)
    return folder


# trtllm-llmapi-launch ---------------------------------------------------------------------


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
