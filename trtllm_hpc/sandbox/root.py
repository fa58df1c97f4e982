"""The root file system that a sandbox runs from: a folder, or the machine's own.

Everywhere a root is the path of its folder; the empty string is the machine's own.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from trtllm_hpc.sandbox import processes

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH in a folder, as ``enter.sh`` sets it."""

SHARED = ("hosts", "resolv.conf", "ssl/certs", "group", "passwd", "shadow", "pip.conf", "xdg/pip")
"""What everybody in a folder sees of the machine's /etc."""


def script(name: str) -> str:
    """The path of a script in ``slurm/sandbox``."""
    return str(resources.files("trtllm_hpc.slurm").joinpath(f"sandbox/{name}"))


def entering(root: str, arguments: Sequence[str]) -> list[str]:
    """The command line that runs ``arguments`` in a root; only root can run it."""
    unshare = ["unshare", "--mount", "--propagation", "slave"] if root else []
    return [*unshare, *pivoting(root, arguments)]


def pivoting(root: str, arguments: Sequence[str]) -> list[str]:
    """The same for a process in a mount namespace of its own.

    The Python that runs this is there beside the folder's own, so that its environments work.
    """
    if not root:
        return list(arguments)
    library = Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib", sysconfig.get_config_var("INSTSONAME"))
    python = (os.path.realpath(sys.executable), sysconfig.get_path("stdlib"), str(library))
    shared = [*(f"/etc/{name}" for name in SHARED), *python]
    return ["bash", script("enter.sh"), root, str(len(shared)), *shared, *arguments]


def which(root: str, command: str) -> str | None:
    """Where a command is, as a path in this root."""
    if not root:
        return shutil.which(command, path=processes.search_path())
    # Not followed: in a folder many are links to absolute paths, which lead elsewhere from outside.
    places = [f"{place}/{command}" for place in PATH.split(os.pathsep)]
    return next((place for place in places if os.path.lexists(f"{root}{place}")), None)
