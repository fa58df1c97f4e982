"""The state folder of a sandbox: its paths, rendered configuration, key and device files."""

from __future__ import annotations

import os
import re
import stat
import sys
from importlib import resources
from pathlib import Path

from trtllm_hpc.errors import SandboxError
from trtllm_hpc.paths import write_text
from trtllm_hpc.sandbox import processes
from trtllm_hpc.sandbox.hosts import ROOT, SandboxLayout, check_name

CPUS_PER_NODE = 16
"""Processors that each node claims to have; in fact all nodes share the machine's."""

SHM_SIZE = "4g"
"""Size of /dev/shm on a node."""

DEVICES = Path("/dev")
"""Folder of the machine's device files."""


class Folder:
    """The state folder of the sandbox called ``name``, and every file in it."""

    def __init__(self, name: str) -> None:
        path = self.path = ROOT / check_name(name)
        self.state = path / "state.json"
        """Shape and subnet, and whether `up` has finished."""
        self.etc = path / "etc"
        """Slurm's configuration files; slurmdbd looks for its own beside slurm.conf."""
        self.slurm_conf = self.etc / "slurm.conf"
        self.database_conf = self.etc / "my.cnf"
        self.hosts = self.etc / "hosts"
        """Mounted over /etc/hosts in the sandbox."""
        self.init = path / "init.sh"
        """Process 1 of every node. The sandbox's processes are recognised by its path."""
        self.stepd_source = path / "slurmstepd.py"
        """The reaper; each node copies it to ``stepd``, since /run may be mounted noexec."""
        self.epilog_source = path / "epilog.sh"
        """Each node copies it to ``epilog``."""
        self.private = path / "private"
        """Mount point of a tmpfs of each node's own; empty from outside."""
        self.stepd = self.private / "slurmstepd"
        """The program that slurmd starts in place of slurmstepd."""
        self.epilog = self.private / "epilog"
        """The program that slurmd runs when a job has ended."""
        self.database_socket = self.private / "mariadb.socket"
        """MariaDB's socket, visible on the head only."""
        self.munge = path / "munge"
        """munged's files; only root can read the key."""
        self.munge_key = self.munge / "munge.key"
        self.munge_socket = self.munge / "munge.socket"
        """Open to every user of the machine, as on a real cluster."""
        self.controller = path / "slurmctld"
        """slurmctld's StateSaveLocation."""
        self.logs = path / "log"
        """Folder with two files for each daemon."""
        self.devices = path / "dev"
        """The files by which Slurm counts the GPUs of a node."""

    def log(self, daemon: str) -> Path:
        """The log of a daemon; slurmd's is called ``slurmd-<host>``."""
        return self.logs / f"{daemon}.log"

    def output(self, daemon: str) -> Path:
        """What a daemon prints before it opens its log."""
        return self.logs / f"{daemon}.out"

    def device(self, index: int) -> Path:
        """The file of one GPU of every node; Slurm takes its number from the digits at the end."""
        return self.devices / f"gpu{index}"


def write_files(folder: Folder, layout: SandboxLayout) -> None:
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


def slurm_version() -> tuple[int, int]:
    """Slurm's release as ``(year, month)``, e.g. (22, 5). Raises SandboxError if slurmd does not print it."""
    output = processes.run([processes.which("slurmd") or "slurmd", "-V"])
    found = re.search(r"(\d+)\.(\d+)", output)
    if found is None:
        raise SandboxError(f"`slurmd -V` prints no version: {output.strip()!r}.")
    return int(found[1]), int(found[2])


def _values(folder: Folder, layout: SandboxLayout) -> dict[str, object]:
    return {
        "folder": folder,
        "layout": layout,
        "cpus": CPUS_PER_NODE,
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "shm_size": SHM_SIZE,
        "machine_devices": DEVICES,
        "machine_hosts": Path("/etc/hosts").read_text(errors="replace").rstrip("\n"),
        "version": slurm_version(),
        # The interpreter itself: a virtual environment may be removed while the sandbox is up.
        "python": os.path.realpath(sys.executable),
        "slurmstepd": processes.which("slurmstepd"),
    }


def rendered(name: str, values: dict[str, object]) -> str:
    """Render one of the templates in ``slurm/sandbox``."""
    from trtllm_hpc.render.environment import environment

    source = resources.files("trtllm_hpc.slurm").joinpath(f"sandbox/{name}.j2")
    return environment().from_string(source.read_text(encoding="utf-8")).render(values)
