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

NETWORK = ("/etc/hosts", "/etc/resolv.conf", "/etc/ssl/certs")
"""Files of the machine that every command in a folder sees in place of the folder's."""

USERS = ("/etc/group", "/etc/passwd", "/etc/shadow", "/etc/pip.conf", "/etc/xdg/pip")
"""The same, but not while packages are installed, which add users."""


def entering(root: str, arguments: Sequence[str]) -> list[str]:
    """The command line that runs ``arguments`` in a root; only root can run it."""
    if not root:
        return list(arguments)
    return ["unshare", "--mount", "--propagation", "slave", *pivoting(root, arguments, shared=shared_files())]


def pivoting(root: str, arguments: Sequence[str], *, shared: Sequence[str] = NETWORK) -> list[str]:
    """The same for a process in a mount namespace of its own, with these files of the machine."""
    if not root:
        return list(arguments)
    script = resources.files("trtllm_hpc.slurm").joinpath("sandbox/enter.sh")
    return ["bash", str(script), root, str(len(shared)), *shared, *arguments]


def shared_files() -> list[str]:
    """The files of the machine for everybody in a folder, with the Python that runs this.

    So this Python's virtual environments work there too, beside the folder's own Python.
    """
    library = Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib", sysconfig.get_config_var("INSTSONAME"))
    python = (os.path.realpath(sys.executable), sysconfig.get_path("stdlib"), str(library))
    return [*NETWORK, *USERS, *python]


def which(root: str, command: str) -> str | None:
    """Where a command is, as a path in this root."""
    if not root:
        return shutil.which(command, path=processes.search_path())
    # Not followed: in a folder many are links to absolute paths, which lead elsewhere from outside.
    places = [f"{place}/{command}" for place in PATH.split(os.pathsep)]
    return next((place for place in places if os.path.lexists(f"{root}{place}")), None)
