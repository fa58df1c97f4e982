"""Makes a root file system with another release of Debian, for a sandbox with another Slurm."""

from __future__ import annotations

import shutil
from pathlib import Path

from trtllm_hpc.errors import SandboxImpossible
from trtllm_hpc.paths import write_text
from trtllm_hpc.sandbox import files, processes, requirements, root
from trtllm_hpc.sandbox.daemons import Progress
from trtllm_hpc.sandbox.sandbox import lock

PACKAGES = (
    "ca-certificates",
    "gcc",
    "libc6-dev",
    "libnuma1",
    "libpython3-dev",
    "libslurm-dev",
    "make",
    "python3-venv",
)
"""What a root has beside a sandbox's own packages: Python with virtual environments, what Triton's
server is linked with, and a compiler for Slurm's plugins."""

_ALONE = ("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "slave")
_ALONE += ("--pid", "--fork", "--kill-child", "--mount-proc")
"""Runs a command whose processes and mounts end with this process, however this ends."""


def make(folder: Path, suite: str, mirror: str | None, *, tell: Progress) -> bool:
    """Make a root file system with everything that a sandbox needs.

    The folder appears when it is complete; until then its name has ``.partial`` at the end.

    Args:
        suite: Debian's name of the release, such as ``trixie``.
        mirror: URL of Debian's packages; ``None`` for the mirror in apt's configuration.
        tell: called with a few words before each step; debootstrap and apt-get print theirs.

    Returns:
        Whether there was anything to make.

    Raises:
        SandboxError: this is not root, the folder holds something else, or a step failed.
    """
    requirements.check_platform()
    requirements.check_root("make a root file system")
    if not is_installed():
        raise SandboxImpossible(
            "debootstrap, which makes a root file system, is not installed.",
            hint=f"trtllm-hpc sandbox root {folder} --install, "
            f"or {requirements.install_command(['debootstrap'])}",
        )
    folder = folder.absolute()
    partial = folder.with_name(f"{folder.name}.partial")
    with files.umask(0o022), lock(f"root file system {folder}", tell):
        if folder.is_dir() and any(folder.iterdir()):
            requirements.check_packages(str(folder))
            return False
        shutil.rmtree(partial, ignore_errors=True)
        try:
            _bootstrap(partial, suite, mirror or _mirror(), tell)
            partial.replace(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return True


def is_installed() -> bool:
    """Whether debootstrap is there."""
    return root.which("", "debootstrap") is not None


def _bootstrap(folder: Path, suite: str, mirror: str, tell: Progress) -> None:
    tell(f"debootstrap {suite} from {mirror}")
    proxies = {f"{scheme}_proxy": _proxy(scheme) for scheme in ("http", "https")}
    environment = {name: proxy for name, proxy in proxies.items() if proxy}
    bootstrap = ["debootstrap", "--variant=minbase", "--include=ca-certificates", suite, str(folder), mirror]
    requirements.run_shown([*_ALONE, *bootstrap], environment)
    configuration = processes.run(["apt-config", "dump", "Acquire"])
    write_text(folder / "etc/apt/apt.conf.d/00machine", configuration, mode=0o644)
    policy = files.rendered("policy-rc.d", {"pid": None})
    write_text(Path(f"{folder}{requirements.POLICY}"), policy, mode=0o755)
    packages = sorted({*requirements.missing_packages(str(folder), optional=True), *PACKAGES})
    tell(f"apt-get install {' '.join(packages)}")
    for words in (["update"], requirements.install_command(packages).split()[1:]):
        # Without the machine's users: packages add their own.
        install = root.pivoting(str(folder), ["apt-get", "-q", *words])
        requirements.run_shown([*_ALONE, *install], environment)


def _mirror() -> str:
    """The mirror of Debian in apt's configuration."""
    wanted = ("Created-By: Packages", "Origin: Debian", "Label: Debian")
    found = processes.run(["apt-get", "indextargets", "--format", "$(REPO_URI)", *wanted]).split()
    if not found:
        raise SandboxImpossible(
            "apt names no mirror of Debian on this machine.",
            hint="apt-get update, or trtllm-hpc sandbox root FOLDER --mirror URL",
        )
    return found[0]


def _proxy(scheme: str) -> str:
    """The proxy in apt's configuration, which debootstrap's wget takes from the environment only."""
    lines = processes.run(["apt-config", "dump", "--format", "%v%n", f"Acquire::{scheme}::Proxy"]).split()
    return lines[0] if lines and lines[0] != "DIRECT" else ""
