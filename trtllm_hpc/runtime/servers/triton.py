"""Triton: its command line on a node, its own HTTP endpoint, and the processes of its Python models."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import shutil
import socket
import sys
import sysconfig
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trtllm_hpc.errors import StartFailed
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.checks import wheel_numpy
from trtllm_hpc.runtime.process import descendants, name_of, parent_of, state_of
from trtllm_hpc.runtime.proxy import SOCKETS_VARIABLE
from trtllm_hpc.runtime.questions import PROMPT, QUICK_S, Question, call, quickly
from trtllm_hpc.runtime.server_spec import RankOptions, StartCommand, find_program

WHEEL = "pytriton"
"""Value of ``triton.server`` for the server in the nvidia-pytriton wheel."""
_LENGTHS = ("max_tokens", "sampling_param_max_tokens")
"""Input with the number of tokens: in upstream's text models, and in the model of the LLM API."""
_NO_WORDS = ("bad_words", "stop_words")
"""Inputs that are not optional in old releases of upstream's ensemble."""
_STUB = "triton_python_b"
"""Name of ``triton_python_backend_stub`` in the kernel, which cuts names off after 15 bytes."""
_SEARCH_S = 5.0
_LOOK_S = 1.0
_DEAD_S = 3.0
"""Seconds after which a zombie counts as dead: a server that is ending would have reaped it or ended by
then."""
_TEXT_MODELS = ("ensemble", "tensorrt_llm_bls", "tensorrt_llm")


def start_command(paths: RunPaths, options: RankOptions, scratch: Path) -> StartCommand:
    """Return a rank's ``tritonserver`` command; see :func:`trtllm_hpc.runtime.servers.start_command`."""
    # Triton's Python backend puts the repository's path unquoted into a shell command, so it gets a link
    # whose path has no spaces or quotes.
    (scratch / "repository").symlink_to(paths.repository)
    http = TritonHttp.here()
    if options.rank == 0 and http.sockets is not None:
        # The folder is in the proxy's, which no other user may enter.
        shutil.rmtree(http.sockets, ignore_errors=True)
        http.sockets.mkdir(mode=0o700)
    program, *words = options.words(
        repository=scratch / "repository", address=http.address, sockets=http.sockets, **http.endpoint()
    )
    server, environment = find_server(program, scratch)
    if options.spec.launcher is None:  # no launcher sets these variables
        local = options.rank % options.ranks_per_node
        world = {"RANK": options.rank, "WORLD_SIZE": options.world_size, "LOCAL_RANK": local}
        environment |= {name: str(value) for name, value in world.items()}
    return [*server, *words], environment


def find_server(server: str, scratch: Path) -> StartCommand:
    """Return the command of the profile's ``triton.server``, without arguments; raise StartFailed if missing.

    Files that the server needs go to ``scratch``, this rank's own folder.
    """
    if server != WHEEL:
        hint = "set triton.server in the cluster profile, or container.image to an image that has it"
        return [find_program(server, hint)], {}
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or spec.origin is None:
        raise StartFailed(
            f"{sys.executable} has no nvidia-pytriton, but triton.server in the profile is pytriton",
            hint="install this package's extra 'reference' there, or set triton.server in the profile",
        )
    if (fault := wheel_numpy()) is not None:
        raise StartFailed(f"{fault.message} ({sys.executable}).", hint=fault.hint)
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
    # A folder with nothing but this Python's shared library, which the stub needs. Python's own folder may
    # contain all system libraries: on LD_LIBRARY_PATH the system's cuDNN would then hide the cuDNN wheel for
    # which PyTorch was built.
    library = scratch / "lib"
    library.mkdir(exist_ok=True)
    for source in Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib").glob(f"libpython{version}*.so*"):
        with suppress(FileExistsError):
            (library / source.name).symlink_to(source)
    libraries = [str(library), os.environ.get("LD_LIBRARY_PATH", "")]
    environment = {
        # The stub starts in isolated mode: the first python3 on PATH decides its environment.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
    }
    program = str(home / "bin" / "tritonserver")
    return [program, f"--backend-directory={backend.parent}"], environment


def only_wheel_has_server() -> bool:
    """Return whether ``PATH`` has no ``tritonserver``, but this Python has the nvidia-pytriton wheel."""
    return shutil.which("tritonserver") is None and importlib.util.find_spec(WHEEL) is not None


@dataclass(frozen=True)
class TritonHttp:
    """Triton's own endpoint."""

    address: str
    http_port: int = 0
    grpc_port: int = 0
    metrics_port: int = 0
    sockets: Path | None = None
    """Folder of Triton's Unix sockets; ``None``: Triton listens on the network."""

    @classmethod
    def here(cls) -> TritonHttp:
        """Return the endpoint that this task's environment variables describe."""
        address = os.environ.get("TRTLLM_HPC_ADDRESS", "")
        if SOCKETS_VARIABLE in os.environ:
            return cls(address, sockets=Path(os.environ[SOCKETS_VARIABLE]))
        names = ("HTTP", "GRPC", "METRICS")
        http, grpc, metrics = (int(os.environ[f"TRTLLM_HPC_{name}_PORT"]) for name in names)
        return cls(address, http, grpc, metrics)

    def endpoint(self) -> dict[str, Any]:
        """Return the ports of the endpoint in a run without a proxy."""
        return {"http_port": self.http_port, "grpc_port": self.grpc_port, "metrics_port": self.metrics_port}

    def ready_models(self) -> list[str] | None:
        """Return the models' names once the server and all of them are ready; ``None`` before."""
        if quickly(self.connection, "GET", "/v2/health/ready") is None:
            return None
        states = self._model_states()
        if not states or any(state != "READY" for state in states.values()):
            return None
        return sorted(states)

    def not_ready(self) -> str:
        """Return which models are not ready, as a sentence."""
        waiting = sorted(name for name, state in self._model_states().items() if state != "READY")
        return f"not READY: {', '.join(waiting)}" if waiting else "the server does not answer"

    def questions(self, models: Sequence[str]) -> list[Question]:
        """Return a question to each of upstream's models that takes text, with the model's own inputs."""
        questions = []
        for model in (name for name in _TEXT_MODELS if name in models):
            path = f"/v2/models/{quote(model)}"
            try:
                config = json.loads(quickly(self.connection, "GET", f"{path}/config") or b"{}")
                inputs = {str(tensor["name"]) for tensor in config["input"]}
            except (ValueError, KeyError, TypeError):
                continue
            length = next((name for name in _LENGTHS if name in inputs), None)
            if "text_input" in inputs and length is not None:
                words = {name: "" for name in _NO_WORDS if name in inputs and length == _LENGTHS[0]}
                body = json.dumps({"text_input": PROMPT, length: 1, **words}).encode()
                questions.append(Question(model, f"{path}/generate_stream", body))
        return questions

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """Return a new connection to the endpoint; raise OSError if its socket cannot be reached."""
        return self._connection("http", self.http_port, timeout_s)

    def metrics(self) -> str:
        """Return the page of metrics; raises like ``call``."""
        connection = self._connection("metrics", self.metrics_port, QUICK_S)
        return call(connection, "GET", "/metrics").decode(errors="replace")

    def _connection(self, kind: str, port: int, timeout_s: float) -> http.client.HTTPConnection:
        if self.sockets is None:
            return http.client.HTTPConnection(self.address, port, timeout=timeout_s)
        connection = http.client.HTTPConnection("triton", timeout=timeout_s)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.settimeout(timeout_s)
        try:
            connection.sock.connect(str(self.sockets / kind))
        except OSError:
            connection.close()
            raise
        return connection

    def others_ask(self) -> bool:
        """Return true: unknown, because the proxy's gRPC connections stay open without requests, too."""
        return True

    def _model_states(self) -> dict[str, str]:
        """Return each model's state from the repository index; empty if the server does not answer."""
        try:
            index = json.loads(quickly(self.connection, "POST", "/v2/repository/index") or b"[]")
        except ValueError:
            return {}
        return {entry["name"]: entry.get("state", "") for entry in index}


class ModelProcesses:
    """The processes of a server's Python models, which are descendants of this process.

    Triton does not notice when one of them dies: it still reports itself ready, and each request for the
    model fails after a second (2.51). It never waits for a dead child, which therefore stays a zombie;
    unloading a model leaves no zombie.
    """

    def __init__(self) -> None:
        self._models: dict[int, str] = {}
        self._dead_since: dict[int, float] = {}
        self._search_at = self._look_at = 0.0

    def dead(self) -> str | None:
        """Return the name of a model whose process has died by itself. May be called often."""
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
            # Skip children of this process and of a model's process. A process that a model has forked looks
            # like the model's own; it becomes a child of this process when its parent dies.
            if pid in self._models or (parent := parent_of(pid)) in (own, None) or name_of(parent) == _STUB:
                continue
            with suppress(OSError):
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
                if name_of(pid) == _STUB and len(arguments) > 1:
                    # The stub's first argument is MODEL/VERSION/model.py.
                    self._models[pid] = Path(arguments[1]).parent.parent.name
