"""A real tritonserver with the two models of the benchmark: nvidia-pytriton carries one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from trtllm_hpc.client.http import is_ready
from trtllm_hpc.runtime.records import Endpoint

_START_LIMIT_S = 60.0
INSTANT, TOKENS = "instant", "tokens"
_CONFIGS = {
    INSTANT: """max_batch_size: 64
dynamic_batching { }
input [ { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
""",
    TOKENS: """max_batch_size: 64
model_transaction_policy { decoupled: true }
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "STAMP" data_type: TYPE_INT64 dims: [ 1 ] } ]
""",
}


class BenchmarkFailed(Exception):
    """A contender or the server could not do its part."""


@dataclass(frozen=True)
class Server:
    """Where it answers."""

    endpoint: Endpoint

    def answered(self) -> int:
        """Requests that it has answered so far, by its own count."""
        with urllib.request.urlopen(self.endpoint.metrics, timeout=10) as page:
            lines = page.read().decode().splitlines()
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith("nv_inference_count{"))


@contextmanager
def running_server(folder: Path) -> Iterator[Server]:
    """Start it in ``folder``, yield it once it is ready, and stop it."""
    ports = _free_ports(3)
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(_command(folder, ports), stdout=log, stderr=log)
    endpoint = Endpoint(
        job_id="0",
        host=socket.gethostname(),
        address="127.0.0.1",
        http_port=ports[0],
        grpc_port=ports[1],
        metrics_port=ports[2],
        models=[*_CONFIGS],
        ready_at=time.time(),
    )
    try:
        _until_ready(process, endpoint, folder / "server.log")
        yield Server(endpoint)
    finally:
        process.terminate()
        process.wait(30)


def wheel_folder() -> Path:
    """Where nvidia-pytriton is installed."""
    spec = find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        raise BenchmarkFailed("nvidia-pytriton is missing: pip install -c constraints.txt '.[reference]'")
    return Path(spec.submodule_search_locations[0])


def _command(folder: Path, ports: list[int]) -> list[str]:
    _write_repository(folder / "repository")
    return [
        "env",
        # The stub takes the first python3 on PATH for its environment.
        f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}",
        str(wheel_folder() / "tritonserver" / "bin" / "tritonserver"),
        f"--model-repository={folder / 'repository'}",
        f"--backend-directory={_link_backends(folder / 'backends')}",
        f"--backend-config=python,shm-region-prefix-name=load_{os.getpid()}_",
        f"--http-port={ports[0]}",
        f"--grpc-port={ports[1]}",
        f"--metrics-port={ports[2]}",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        "--allow-gpu-metrics=false",
    ]


def _write_repository(folder: Path) -> None:
    for name, config in _CONFIGS.items():
        (folder / name / "1").mkdir(parents=True)
        source = Path(__file__).parent / "models" / f"{name}.py"
        (folder / name / "1" / "model.py").write_bytes(source.read_bytes())
        (folder / name / "config.pbtxt").write_text(
            f'name: "{name}"\nbackend: "python"\n{config}', encoding="utf-8"
        )


def _link_backends(folder: Path) -> Path:
    """The Python backend and the stub for this Python, side by side as the server wants them."""
    (folder / "python").mkdir(parents=True)
    wheel = wheel_folder() / "tritonserver"
    release = f"{sys.version_info.major}.{sys.version_info.minor}"
    for source in (
        wheel / "backends" / "python" / "libtriton_python.so",
        wheel / "backends" / "python" / "triton_python_backend_utils.py",
        wheel / "python_backend_stubs" / release / "triton_python_backend_stub",
    ):
        (folder / "python" / source.name).symlink_to(source)
    return folder


def _until_ready(process: subprocess.Popen[bytes], endpoint: Endpoint, log: Path) -> None:
    end = time.monotonic() + _START_LIMIT_S
    while not is_ready(endpoint, 1.0):
        if process.poll() is not None or time.monotonic() > end:
            raise BenchmarkFailed(f"tritonserver did not start:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
