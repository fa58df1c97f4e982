"""Finding ``tritonserver``: the container's, or the one that a wheel carries."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

WHEEL = "pytriton"
"""Value of ``triton.server`` for the server in the nvidia-pytriton wheel."""


@dataclass(frozen=True)
class Server:
    """How to start a server on this node."""

    program: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    """Variables to set over the task's own."""
    scratch: Path | None = None
    """A folder to remove when the server has ended."""

    def clean(self) -> None:
        """Remove what finding the server has made."""
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)


def find_server(server: str) -> Server:
    """The server that the profile names.

    Raises:
        SystemExit: it is not on this node.
    """
    if server == WHEEL:
        return _from_wheel()
    program = shutil.which(server)
    if program is None:
        raise SystemExit(
            f"error: no program {server!r} on {os.uname().nodename}.\n"
            "  next: set triton.server in the cluster profile, or container.image to an image that has it"
        )
    return Server(program, (), {})


def _from_wheel() -> Server:
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or spec.origin is None:
        raise SystemExit(
            f"error: {sys.executable} has no nvidia-pytriton, whose tritonserver the profile asks for.\n"
            "  next: pip install 'trtllm-hpc[reference]' there, or set triton.server in the cluster profile"
        )
    home = Path(spec.origin).parent / "tritonserver"
    scratch = Path(tempfile.mkdtemp(prefix="trtllm-hpc-backends-"))
    backend = scratch / "python"
    backend.mkdir()
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
    return Server(program, (f"--backend-directory={scratch}",), environment, scratch)
