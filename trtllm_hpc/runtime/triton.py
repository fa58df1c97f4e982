"""Finding ``tritonserver``: the container's, or the one that a wheel carries."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from trtllm_hpc.errors import StartFailed

WHEEL = "pytriton"
"""Value of ``triton.server`` for the server in the nvidia-pytriton wheel."""


@dataclass(frozen=True)
class Server:
    """How to start a server on this node."""

    program: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    """Variables to set over the task's own."""


def find_server(server: str, scratch: Path) -> Server:
    """The server that the profile names.

    Args:
        scratch: a folder of this rank's own, for what the server needs beside it.

    Raises:
        StartFailed: it is not on this node.
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
            f"{sys.executable} has no nvidia-pytriton, whose tritonserver the profile asks for",
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
    libraries = [sysconfig.get_config_var("LIBDIR") or "", os.environ.get("LD_LIBRARY_PATH", "")]
    environment = {
        # The stub starts in isolated mode: the first python3 on PATH decides its environment.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
    }
    program = str(home / "bin" / "tritonserver")
    return Server(program, (f"--backend-directory={backend.parent}",), environment)
