"""The requirements of a sandbox: checks of this machine, its GPUs, and installation of Debian packages."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trtllm_hpc.errors import SandboxError, SandboxImpossible
from trtllm_hpc.paths import write_text
from trtllm_hpc.sandbox import cluster, processes
from trtllm_hpc.sandbox.hosts import MAX_GPUS, Shape
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
"""Debian package of each optional command: it is installed with the others, but a sandbox starts without
it."""

LIBRARIES = {"/usr/lib/*/libpmix.so": "libpmix-dev"}
"""Debian package of each library; `srun --mpi=pmix` loads libpmix.so, a name that only the -dev package
has."""

PROBE = (
    "mount -t tmpfs sandbox /tmp && ip link add name bridge0 type bridge && "
    "ip link add name one type veth peer name two"
)
"""Commands that test, in separate namespaces, whether the kernel permits mounts, bridges and virtual
interfaces."""

POLICY = Path("/usr/sbin/policy-rc.d")
INSTALL_TIMEOUT_S = 900.0
LOG = Path("/var/log/trtllm-hpc-install.log")
"""Log with the output of apt-get."""


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
    """Return the Debian packages of missing commands and libraries, sorted."""
    commands = COMMANDS | (OPTIONAL if optional else {})
    libraries = dict(LIBRARIES)
    if sys.base_prefix == "/usr":  # Triton loads the library of Debian's Python
        python = f"libpython{sys.version_info.major}.{sys.version_info.minor}"
        libraries[f"/usr/lib/*/{python}.so.1.0"] = python
    lacking = {package for command, package in commands.items() if processes.which(command) is None}
    lacking |= {package for file, package in libraries.items() if not any(Path("/").glob(file.lstrip("/")))}
    return sorted(lacking)


def check_packages() -> None:
    """Raise ``SandboxImpossible`` if a command or library is missing."""
    if packages := missing_packages():
        raise SandboxImpossible(
            f"A sandbox needs Debian packages that are not installed: {', '.join(packages)}.",
            hint="trtllm-hpc sandbox up --install (starts none of their services), "
            f"or apt-get install --no-install-recommends -y {' '.join(packages)}",
        )


def check_kernel() -> None:
    """Raise ``SandboxImpossible`` unless the kernel (or the surrounding container) permits the PROBE."""
    try:
        processes.run(["unshare", *NAMESPACES, "--fork", "--kill-child", "bash", "-c", PROBE])
    except SandboxError as error:
        raise SandboxImpossible(
            f"This machine does not permit namespaces, mounts or virtual networks. {error.message}",
            hint="use a virtual machine or a privileged container "
            "(docker run --privileged), or trtllm-hpc submit tiny-llama --cluster local",
        ) from error


# GPUs -----------------------------------------------------------------------------------


def gpu_devices() -> tuple[str, ...]:
    """Return the names of the GPUs' device files in ``/dev``, such as ``nvidia0``, sorted by number.

    The driver makes a file for each GPU. A container has only the files of its own GPUs, with the machine's
    numbers.
    """
    files = [path for path in cluster.DEVICES.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    names = [path.name for path in files if stat.S_ISCHR(path.stat().st_mode)]
    return tuple(sorted(names, key=lambda name: int(name.removeprefix("nvidia"))))


def real_shape(nodes: int, gpus_per_node: int | None) -> Shape:
    """Return the shape of a sandbox with the machine's own GPUs; ``None``: all GPUs, divided among the nodes.

    Raises SandboxImpossible if the machine has too few GPUs.
    """
    names = gpu_devices()
    per_node = gpus_per_node or min(len(names) // nodes, MAX_GPUS) or 1
    shape = Shape(nodes, per_node, real_gpus=True)
    if (needed := nodes * per_node) > len(names):
        files = ", ".join(str(cluster.DEVICES / name) for name in names) or "no /dev/nvidia0"
        raise SandboxImpossible(
            f"A sandbox of {shape} needs {needed} NVIDIA GPUs; this machine has {len(names)}: {files}.",
            hint="fewer --nodes, nvidia-smi -L as root (which makes the device files), or --gpus claimed, "
            "for nodes that only claim to have GPUs",
        )
    return shape


# Installation ---------------------------------------------------------------------------


def install_missing(*, tell: Progress) -> list[str]:
    """Install missing Debian packages without starting any service; return the packages.

    Raises SandboxError if this is not root or not Linux, or apt-get is missing or fails.
    """
    check_platform()
    check_root()
    packages = missing_packages(optional=True)
    if not packages:
        return []
    if processes.which("apt-get") is None:
        raise SandboxImpossible(
            "There is no apt-get on this machine to install the packages with. "
            f"A sandbox needs what Debian calls {', '.join(packages)}.",
            hint="install them with this system's package manager, then type trtllm-hpc sandbox up",
        )
    tell(f"apt-get install {' '.join(packages)} (output in {LOG})")
    with services_held_back():
        _apt_get("update")
        _apt_get("install", "--no-install-recommends", "-y", *packages)
    return packages


@contextmanager
def services_held_back() -> Iterator[None]:
    """Keep packages from starting, stopping or restarting services within this context.

    Debian runs ``/usr/sbin/policy-rc.d`` before each such action (invoke-rc.d(8), deb-systemd-invoke(1p)). A
    file that already exists stays in force. If this process is killed, its file allows everything again.
    """
    if POLICY.exists() and "trtllm-hpc" not in POLICY.read_text():
        yield
        return
    started = Path("/proc/self/stat").read_text().split()[21]
    text = cluster.rendered("policy-rc.d", {"pid": os.getpid(), "started": started})
    write_text(POLICY, text, mode=0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)


def _apt_get(*arguments: str) -> None:
    """Run apt-get with its output in ``LOG``; raise SandboxImpossible, with the end of the output."""
    environment = {
        **os.environ,
        "PATH": processes.search_path(),
        "DEBIAN_FRONTEND": "noninteractive",
        # Ubuntu's needrestart would restart services that use a new library.
        "NEEDRESTART_SUSPEND": "1",
    }
    command = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300", *arguments]
    why = "failed"
    with LOG.open("ab") as log:
        try:
            done = subprocess.run(
                command,
                check=False,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=INSTALL_TIMEOUT_S,
            )
            if done.returncode == 0:
                return
            why = f"failed with exit code {done.returncode}"
        except subprocess.TimeoutExpired:
            why = f"did not finish within {INSTALL_TIMEOUT_S:g} s"
    raise SandboxImpossible(f"apt-get {why}.\n{tail(LOG)}", hint=" ".join(["apt-get", *arguments]))
