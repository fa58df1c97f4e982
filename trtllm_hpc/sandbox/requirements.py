"""What a sandbox needs of this machine, and the installation of Debian packages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trtllm_hpc.errors import SandboxError, SandboxImpossible
from trtllm_hpc.paths import write_text
from trtllm_hpc.runtime.process import captured
from trtllm_hpc.sandbox import processes
from trtllm_hpc.sandbox.files import rendered
from trtllm_hpc.sandbox.nodes import NAMESPACES, tail
from trtllm_hpc.sandbox.processes import Progress

COMMANDS = {
    "srun": "slurm-client",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurmstepd": "slurmd",
    "slurmdbd": "slurmdbd",
    "munged": "munge",
    "munge": "munge",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
    "mpirun": "openmpi-bin",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setsid": "util-linux",
    "hostname": "hostname",
    "bash": "bash",
}
"""Debian package of each command that a sandbox or its jobs run."""

OPTIONAL = {"haproxy": "haproxy"}
"""The same for what ``serve.proxy: none`` does without: installed with the others, but not missed."""

LIBRARIES = {"/usr/lib/*/libpmix.so": "libpmix-dev"}
"""Debian package of each library; `srun --mpi=pmix` loads this one by the name that only -dev has."""

PROBES = {
    "namespaces": ("true",),
    "mounts in a namespace": ("mount", "-t", "tmpfs", "sandbox", "/tmp"),
    "network bridges": ("ip", "link", "add", "name", "bridge0", "type", "bridge"),
    "virtual network interfaces": ("ip", "link", "add", "name", "one", "type", "veth", "peer", "name", "two"),
}
"""What the kernel must permit, each with a command that tries it in namespaces of its own."""

POLICY = Path("/usr/sbin/policy-rc.d")
SET_ASIDE = Path("/usr/sbin/policy-rc.d.before-trtllm-hpc")
INSTALL_TIMEOUT_S = 900.0
LOG = Path("/var/log/trtllm-hpc-install.log")
"""What apt-get prints."""
PROGRESS_S = 10.0
"""Pause between two reports on an installation."""


def check_platform() -> None:
    """Raise ``SandboxImpossible`` unless this is Linux."""
    if not sys.platform.startswith("linux"):
        raise SandboxImpossible(
            f"A sandbox needs Linux namespaces, and this is {sys.platform}.",
            hint="trtllm-hpc submit tiny-llama --cluster local",
        )


def check_root() -> None:
    """Raise ``SandboxImpossible`` unless this is root."""
    if os.geteuid() != 0:
        raise SandboxImpossible(
            "Only root can start or stop a sandbox, because that makes namespaces and mounts. "
            "Once a sandbox is up, every user can submit to it.",
            hint="run the same command as root, or trtllm-hpc submit tiny-llama --cluster local",
        )


def missing_packages(*, optional: bool = False) -> list[str]:
    """The Debian packages with the commands and libraries that this machine lacks, sorted."""
    commands = COMMANDS | (OPTIONAL if optional else {})
    libraries = dict(LIBRARIES)
    if sys.base_prefix == "/usr":  # Triton loads the library of Debian's Python
        python = f"libpython{sys.version_info.major}.{sys.version_info.minor}"
        libraries[f"/usr/lib/*/{python}.so.1.0"] = python
    lacking = {package for command, package in commands.items() if processes.which(command) is None}
    lacking |= {package for file, package in libraries.items() if not any(Path("/").glob(file.lstrip("/")))}
    return sorted(lacking)


def install_command(packages: list[str]) -> str:
    """The command that installs these packages."""
    return f"apt-get install --no-install-recommends -y {' '.join(packages)}"


def check_packages() -> None:
    """Raise ``SandboxImpossible`` if a command or library is missing."""
    if packages := missing_packages():
        raise SandboxImpossible(
            f"A sandbox needs Debian packages that are not installed: {', '.join(packages)}.",
            hint="trtllm-hpc sandbox up --install (starts none of their services), "
            f"or {install_command(packages)}",
        )


def check_kernel() -> None:
    """Raise ``SandboxImpossible`` unless the kernel, or the container that this is in, permits all PROBES."""
    for what, command in PROBES.items():
        try:
            processes.run(["unshare", *NAMESPACES, "--fork", "--kill-child", *command])
        except SandboxError as error:
            raise SandboxImpossible(
                f"This machine does not permit {what}, which a sandbox needs. {error.message}",
                hint="use a virtual machine or a privileged container "
                "(docker run --privileged), or trtllm-hpc submit tiny-llama --cluster local",
            ) from error


def install_missing(*, tell: Progress) -> list[str]:
    """Install the Debian packages that a sandbox lacks, and start no service; return them.

    Raises SandboxError if this is not root or not Linux, there is no apt-get, or it failed.
    """
    check_platform()
    check_root()
    packages = missing_packages(optional=True)
    if not packages:
        return []
    if shutil.which("apt-get") is None:
        raise SandboxImpossible(
            "There is no apt-get on this machine to install the packages with. "
            f"A sandbox needs what Debian calls {', '.join(packages)}.",
            hint="install them with this system's package manager, then type trtllm-hpc sandbox up",
        )
    tell(f"apt-get install {' '.join(packages)} (output in {LOG})")
    with services_held_back():
        _apt_get("update", tell=tell)
        _install(packages, tell)
    return packages


@contextmanager
def services_held_back() -> Iterator[None]:
    """Let no package start, stop or restart a service within this context.

    Debian runs ``/usr/sbin/policy-rc.d`` before each such action (invoke-rc.d(8),
    deb-systemd-invoke(1p)). A file that is already there is set aside and put back. If this
    process is killed, the file that it leaves allows everything again.
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


def _install(packages: list[str], tell: Progress) -> None:
    """Install packages, and upgrade others only if apt-get finds no other way."""
    install = install_command(packages).split()
    with tempfile.NamedTemporaryFile("w") as preferences:
        # The version that is installed goes before every other one (apt_preferences(5)).
        preferences.write("Package: *\nPin: release a=now\nPin-Priority: 1001\n")
        preferences.flush()
        keeping = ["-o", f"Dir::Etc::Preferences={preferences.name}"]
        if captured(["apt-get", "-s", *keeping, *install[1:]], INSTALL_TIMEOUT_S).returncode:
            planned = captured(["apt-get", "-s", *install[1:]], INSTALL_TIMEOUT_S).stdout
            names = re.findall(r"^Inst (\S+) \[", planned, re.MULTILINE)
            tell(f"they need newer versions of {', '.join(names) or 'packages that are installed'}")
            keeping = []
        _apt_get(*keeping, *install[1:], tell=tell, hint=" ".join(install))


def _apt_get(*arguments: str, tell: Progress, hint: str = "apt-get update") -> None:
    """Run apt-get with its output in ``LOG``, and report now and then how far it is.

    Raises SandboxImpossible, with the end of the output, if it failed or took too long.
    """
    environment = {
        **os.environ,
        "PATH": processes.search_path(),
        "DEBIAN_FRONTEND": "noninteractive",
        # Ubuntu's needrestart would restart services that use a new library.
        "NEEDRESTART_SUSPEND": "1",
    }
    command = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300", *arguments]
    begun = time.monotonic()
    with LOG.open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        while (passed_s := time.monotonic() - begun) < INSTALL_TIMEOUT_S:
            with suppress(subprocess.TimeoutExpired):
                process.wait(PROGRESS_S)
                break
            tell(f"apt-get, for {passed_s + PROGRESS_S:.0f} s: {tail(LOG, 1).splitlines()[-1].strip()[:60]}")
        else:
            raise SandboxImpossible(f"apt-get did not finish within {INSTALL_TIMEOUT_S:g} s.\n{tail(LOG)}")
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        raise SandboxImpossible(
            f"apt-get failed with exit code {process.returncode}.\n{tail(LOG)}", hint=hint
        )
