"""Makes a root file system with another release of Debian, for a sandbox with another Slurm."""

from __future__ import annotations

import shutil
from pathlib import Path

from trtllm_hpc.errors import SandboxImpossible
from trtllm_hpc.sandbox import files, requirements
from trtllm_hpc.sandbox.daemons import Progress
from trtllm_hpc.sandbox.root import script, which
from trtllm_hpc.sandbox.sandbox import lock

_ALONE = "setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child --mount-proc"
"""Runs a command whose processes and mounts end with this process, however this ends."""


def make(folder: Path, suite: str, mirror: str = "", *, install: bool = False, tell: Progress) -> bool:
    """Make a root file system with everything that a sandbox needs.

    The folder appears when it is complete; until then its name has ``.partial`` at the end.

    Args:
        mirror: URL of Debian's packages; by default the mirror in apt's configuration.

    Returns:
        Whether there was anything to make.

    Raises:
        SandboxError: this is not root, the folder holds something else, or a step failed.
    """
    requirements.check_platform()
    requirements.check_root("make a root file system")
    folder = folder.absolute()
    with files.umask(0o022), lock(f"root file system {folder}", tell):
        if folder.is_dir() and any(folder.iterdir()):
            requirements.check_packages(str(folder))
            return False
        if install and not which("", "debootstrap"):
            requirements.install_missing(["debootstrap"], tell=tell)
        elif not which("", "debootstrap"):
            raise SandboxImpossible(
                "debootstrap, which makes a root file system, is not installed.",
                hint=f"trtllm-hpc sandbox root {folder} --install, or apt-get install debootstrap",
            )
        partial = Path(f"{folder}.partial")
        packages = requirements.missing_packages(str(partial), optional=True)
        tell(f"debootstrap {suite} and {' '.join(packages)}")
        try:
            shutil.rmtree(partial, ignore_errors=True)  # of one that was killed
            command = ["bash", script("make-root.sh"), str(folder), suite, mirror, *packages]
            requirements.run_shown("debootstrap", [*_ALONE.split(), *command])
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return True
