"""Start a real tritonserver (from the nvidia-pytriton wheel) with Python models as a child process.

The tests use this module, too.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from trtllm_hpc.client.single_calls import not_ready
from trtllm_hpc.runtime.node import free_ports
from trtllm_hpc.runtime.records import Endpoint

_START_LIMIT_S = 60.0


class ServerFailed(Exception):
    """The server is not installed or did not start. The message contains the end of the server's log."""


@contextmanager
def running_triton(folder: Path, models: Sequence[str], *, options: Sequence[str] = ()) -> Iterator[Endpoint]:
    """Serve ``folder/repository``, yield the endpoint once every model is ready, and stop it.

    Args:
        folder: contains ``repository``; the log and the backends are written into it.
        models: names of the models that the endpoint lists.
        options: further options of tritonserver.

    Raises:
        ServerFailed: tritonserver is not installed, or did not start.
    """
    ports = free_ports(3)
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(_command(folder, ports, options), stdout=log, stderr=log)
    endpoint = Endpoint(
        job_id="1",
        host=socket.gethostname(),
        address="127.0.0.1",
        http_port=ports[0],
        grpc_port=ports[1],
        metrics_port=ports[2],
        models=list(models),
        ready_at=time.time(),
    )
    try:
        _until_ready(process, endpoint, folder / "server.log")
        yield endpoint
    finally:
        process.terminate()
        process.wait(30)


def _command(folder: Path, ports: Sequence[int], options: Sequence[str]) -> list[str]:
    return [
        "env",
        # The stub of the Python backend uses the environment of the first python3 on PATH.
        f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}",
        str(wheel_folder() / "tritonserver" / "bin" / "tritonserver"),
        f"--model-repository={folder / 'repository'}",
        f"--backend-directory={link_backends(folder / 'backends')}",
        f"--backend-config=python,shm-region-prefix-name=triton_{os.getpid()}_{ports[0]}_",
        f"--http-port={ports[0]}",
        f"--grpc-port={ports[1]}",
        f"--metrics-port={ports[2]}",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        "--allow-gpu-metrics=false",
        *options,
    ]


def wheel_folder() -> Path:
    """Return the folder in which nvidia-pytriton is installed.

    Raises:
        ServerFailed: nvidia-pytriton is not installed.
    """
    spec = find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        raise ServerFailed("nvidia-pytriton is missing: pip install -c constraints.txt '.[reference]'")
    return Path(spec.submodule_search_locations[0])


def link_backends(folder: Path) -> Path:
    """Link the Python backend and the stub for this Python; a copied stub would not find its libraries."""
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
    while not_ready(endpoint, 1.0):
        if process.poll() is not None or time.monotonic() > end:
            raise ServerFailed(f"tritonserver did not start:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.1)
