"""What a sandbox needs of this machine, and which of it is missing."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from trtllm_hpc.errors import SandboxError, SandboxImpossible
from trtllm_hpc.sandbox import processes
from trtllm_hpc.sandbox.machines import NAMESPACES

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
"""Each command that a sandbox runs or that its jobs expect, and its Debian package."""

LIBRARIES = {"/usr/lib/*/libpmix.so": "libpmix-dev"}
"""What `srun --mpi=pmix` loads by this very name (hence a -dev), and its Debian package."""

PROBES = {
    "namespaces": ("true",),
    "mounts in a namespace": ("mount", "-t", "tmpfs", "sandbox", "/tmp"),
    "network bridges": ("ip", "link", "add", "name", "bridge0", "type", "bridge"),
    "virtual network cables": ("ip", "link", "add", "name", "one", "type", "veth", "peer", "name", "two"),
}
"""What the kernel must permit, each with a command that needs it, run in namespaces of its own."""


def check_platform() -> None:
    """Raise unless this is Linux."""
    if not sys.platform.startswith("linux"):
        raise SandboxImpossible(
            f"A sandbox is made of Linux namespaces, and this is {sys.platform}.",
            hint="trtllm-hpc submit JOB --cluster local",
        )


def check_root() -> None:
    """Raise unless this is root."""
    if os.geteuid() != 0:
        raise SandboxImpossible(
            "Only root can start or stop a sandbox: it makes network namespaces and mounts. "
            "Once it is up, every user can submit to it.",
            hint="run the same command as root, or trtllm-hpc submit JOB --cluster local without a sandbox",
        )


def missing_packages() -> list[str]:
    """The Debian packages that would bring what this machine lacks, sorted."""
    path = processes.search_path()
    lacking = {package for command, package in COMMANDS.items() if shutil.which(command, path=path) is None}
    lacking |= {package for file, package in LIBRARIES.items() if not any(Path("/").glob(file.lstrip("/")))}
    return sorted(lacking)


def install_command(packages: list[str]) -> str:
    """What to type for these packages."""
    return f"apt-get install --no-install-recommends -y {' '.join(packages)}"


def check_packages() -> None:
    """Raise unless every program is there."""
    packages = missing_packages()
    if packages:
        raise SandboxImpossible(
            f"A sandbox needs Debian packages that are not here: {', '.join(packages)}.",
            hint="trtllm-hpc sandbox up --install (their services are not started), "
            f"or {install_command(packages)}",
        )


def check_kernel() -> None:
    """Raise unless the kernel, or the container around this, permits what is needed."""
    for what, command in PROBES.items():
        try:
            processes.run(["unshare", *NAMESPACES, "--fork", "--kill-child", *command])
        except SandboxError as error:
            raise SandboxImpossible(
                f"This machine does not permit {what}, which a sandbox needs. {error.message}",
                hint="use a virtual machine or a privileged container "
                "(docker run --privileged), or trtllm-hpc submit JOB --cluster local",
            ) from error
