"""Bring the missing Debian packages without starting a single service."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trtllm_hpc.errors import SandboxImpossible
from trtllm_hpc.paths import write_text
from trtllm_hpc.sandbox import processes, requirements
from trtllm_hpc.sandbox.files import rendered

POLICY = Path("/usr/sbin/policy-rc.d")
SET_ASIDE = Path("/usr/sbin/policy-rc.d.before-trtllm-hpc")
INSTALL_TIMEOUT_S = 900.0


def install_missing(*, tell: Callable[[str], None]) -> list[str]:
    """Install the packages that a sandbox lacks; the ones that are there stay as they are.

    Returns:
        The packages that were asked for; none if nothing was missing.

    Raises:
        SandboxError: not root, not a Debian, or apt-get failed.
    """
    requirements.check_platform()
    requirements.check_root()
    packages = requirements.missing_packages()
    if not packages:
        return []
    if shutil.which("apt-get") is None:
        raise SandboxImpossible(
            "There is no apt-get here, so the packages cannot be installed for you: "
            f"a sandbox needs what Debian calls {', '.join(packages)}.",
            hint="install them by this system's own means, then trtllm-hpc sandbox up",
        )
    tell(f"apt-get install {' '.join(packages)}")
    with services_held_back():
        _apt_get("update")
        _apt_get(*requirements.install_command(packages).split()[1:])
    return packages


@contextmanager
def services_held_back() -> Iterator[None]:
    """No package starts, stops or restarts a service meanwhile.

    Debian asks ``/usr/sbin/policy-rc.d`` before each such action (invoke-rc.d(8),
    deb-systemd-invoke(1p)). One that is there already is set aside and put back.
    If this process is killed, the file it leaves allows everything again.
    """
    if POLICY.exists() and not SET_ASIDE.exists():
        POLICY.rename(SET_ASIDE)
    started = Path("/proc/self/stat").read_text().split()[21]
    values: dict[str, object] = {"pid": os.getpid(), "started": started, "set_aside": str(SET_ASIDE)}
    write_text(POLICY, rendered("policy-rc.d", values), mode=0o755)
    try:
        yield
    finally:
        if SET_ASIDE.exists():
            SET_ASIDE.replace(POLICY)
        else:
            POLICY.unlink(missing_ok=True)


def _apt_get(*arguments: str) -> None:
    """Run apt-get with its output on standard error: standard output is the answer's."""
    environment = {
        **os.environ,
        "PATH": processes.search_path(),
        "DEBIAN_FRONTEND": "noninteractive",
        # Ubuntu's needrestart would restart services that use a new library.
        "NEEDRESTART_SUSPEND": "1",
    }
    command = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300", *arguments]
    try:
        done = subprocess.run(
            command,
            check=False,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            timeout=INSTALL_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise SandboxImpossible(f"apt-get did not end within {INSTALL_TIMEOUT_S:g} s.") from error
    if done.returncode != 0:
        raise SandboxImpossible(
            f"apt-get failed with {done.returncode}; it says why above.",
            hint=" ".join(["apt-get", *arguments]),
        )
