"""The files of a sandbox: rendered configuration, key, device files, folders."""

from __future__ import annotations

import os
import platform
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from trtllm_hpc.errors import SandboxError
from trtllm_hpc.paths import write_text
from trtllm_hpc.sandbox import gpus, processes
from trtllm_hpc.sandbox.layout import Folder, Layout

CPUS_PER_NODE = 16
"""Processors that each node claims to have; in fact all nodes share the machine's."""

SHM_SIZE = "4g"
"""Size of /dev/shm on a node."""


def write_files(folder: Folder, layout: Layout) -> None:
    """Write everything that the daemons read, for all users but the key and, as slurmdbd wants, its file."""
    for path in (folder.etc, folder.logs, folder.private, folder.munge, folder.devices):
        path.mkdir(mode=0o755)
    folder.controller.mkdir(mode=0o700)
    key = os.open(folder.munge_key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    with os.fdopen(key, "wb") as file:
        file.write(os.urandom(128))
    for index in range(layout.shape.gpus_per_node):
        # The device numbers of /dev/null, so that opening the file does no harm. Real GPUs have them
        # too: on every node Slurm must count from 0, as CUDA does there, and the machine's files do not.
        os.mknod(folder.device(index), 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    values = _values(folder, layout)
    for path, mode in {
        folder.slurm_conf: 0o644,
        folder.etc / "gres.conf": 0o644,
        folder.etc / "cgroup.conf": 0o644,
        folder.etc / "slurmdbd.conf": 0o600,
        folder.database_conf: 0o644,
        folder.hosts: 0o644,
        folder.init: 0o644,
        folder.stepd_source: 0o644,
        folder.epilog_source: 0o644,
    }.items():
        write_text(path, rendered(path.name, values), mode=mode)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """Create files with this umask: root's own may make them unreadable for users."""
    previous = os.umask(mask)
    try:
        yield
    finally:
        os.umask(previous)


def slurm_version() -> tuple[int, int]:
    """Slurm's release as ``(year, month)``, e.g. (22, 5). Raises SandboxError if slurmd does not print it."""
    output = processes.run([processes.which("slurmd") or "slurmd", "-V"])
    found = re.search(r"(\d+)\.(\d+)", output)
    if found is None:
        raise SandboxError(f"`slurmd -V` prints no version: {output.strip()!r}.")
    return int(found[1]), int(found[2])


def _values(folder: Folder, layout: Layout) -> dict[str, object]:
    return {
        "folder": folder,
        "layout": layout,
        "cpus": CPUS_PER_NODE,
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "shm_size": SHM_SIZE,
        "machine_devices": gpus.DEVICES,
        "machine_hosts": _machine_hosts(),
        "version": slurm_version(),
        # The interpreter itself: a virtual environment may be removed while the sandbox is up.
        "python": os.path.realpath(sys.executable),
        "slurmstepd": processes.which("slurmstepd"),
    }


def _machine_hosts() -> str:
    try:
        return Path("/etc/hosts").read_text(errors="replace").rstrip("\n")
    except FileNotFoundError:
        return f"127.0.0.1 localhost {platform.node()}"


def rendered(name: str, values: dict[str, object]) -> str:
    """Render one of the templates in ``slurm/sandbox``."""
    from trtllm_hpc.render.environment import environment

    source = resources.files("trtllm_hpc.slurm").joinpath(f"sandbox/{name}.j2")
    return environment().from_string(source.read_text(encoding="utf-8")).render(values)
