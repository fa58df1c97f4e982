"""Names, size and state folder of a sandbox: pure values without side effects."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from trtllm_hpc.config.cluster import REAL_GPU, SANDBOX_ROOT
from trtllm_hpc.errors import SandboxError

ROOT = Path(SANDBOX_ROOT)
"""Parent of all state folders. Like sandboxes, files in ``/run`` do not survive a boot."""

POOLS = ("10.97", "10.213", "172.29", "198.18")
"""The /16 networks for subnets: private ranges that few sites use, then RFC 2544's range, in case of VPNs."""

JOB_IDS = 50_000
"""Number of job IDs reserved for each subnet; the last range ends below Slurm's MaxJobId."""

MAX_NODES = 32
MAX_GPUS = 16

_INTERFACE_LIMIT = 15
"""The kernel's IFNAMSIZ without the final NUL."""


def check_name(name: str) -> str:
    """Return the name if it can be part of host names and file names. Raises SandboxError otherwise."""
    if re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?", name):
        return name
    raise SandboxError(
        f"{name!r} cannot be the name of a sandbox: "
        "use 1 to 32 lower-case letters, digits and inner hyphens.",
        hint="trtllm-hpc sandbox up --name try-1",
    )


@dataclass(frozen=True)
class Shape:
    """The size of a sandbox."""

    nodes: int
    gpus_per_node: int
    real_gpus: bool = False
    """Whether the GPUs are the machine's own; otherwise they exist only in Slurm."""

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MAX_NODES:
            raise SandboxError(f"A sandbox has 1 to {MAX_NODES} nodes, not {self.nodes}.")
        if not 0 <= self.gpus_per_node <= MAX_GPUS:
            raise SandboxError(f"A sandbox node has 0 to {MAX_GPUS} GPUs, not {self.gpus_per_node}.")

    def __str__(self) -> str:
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        kind = "real GPU" if self.real_gpus else "GPU"
        gpus = f"1 {kind}" if self.gpus_per_node == 1 else f"{self.gpus_per_node} {kind}s"
        return f"{nodes} with {gpus} each"

    @property
    def gpu_type(self) -> str | None:
        """The GRES type of the GPUs."""
        return REAL_GPU if self.real_gpus else None


class Folder:
    """The state folder of the sandbox called ``name``, and every file in it."""

    def __init__(self, name: str) -> None:
        path = self.path = ROOT / check_name(name)
        self.state = path / "state.json"
        """File with shape and subnet, and whether `up` has finished."""
        self.etc = path / "etc"
        """Folder of Slurm's configuration files; slurmdbd looks for its file beside slurm.conf."""
        self.slurm_conf = self.etc / "slurm.conf"
        self.database_conf = self.etc / "my.cnf"
        self.hosts = self.etc / "hosts"
        """File that is mounted over /etc/hosts in the sandbox."""
        self.init = path / "init.sh"
        """Script of process 1 of every node; its path identifies the sandbox's processes."""
        self.stepd_source = path / "slurmstepd.py"
        """The reaper; each node copies it to ``stepd``, because /run may be mounted noexec."""
        self.epilog_source = path / "epilog.sh"
        """The epilog; each node copies it to ``epilog``."""
        self.private = path / "private"
        """Mount point of a separate tmpfs on each node; empty outside the nodes."""
        self.stepd = self.private / "slurmstepd"
        """The program that slurmd starts in place of slurmstepd."""
        self.epilog = self.private / "epilog"
        """The program that slurmd runs when a job has ended."""
        self.database_socket = self.private / "mariadb.socket"
        """MariaDB's socket, visible only on the head."""
        self.munge = path / "munge"
        """Folder of munged's files; only root can read the key."""
        self.munge_key = self.munge / "munge.key"
        self.munge_socket = self.munge / "munge.socket"
        """munged's socket, open to every user of the machine, as on a real cluster."""
        self.controller = path / "slurmctld"
        """slurmctld's StateSaveLocation."""
        self.logs = path / "log"
        """Folder with two files for each daemon."""
        self.devices = path / "dev"
        """Folder of the device files by which Slurm counts the GPUs of a node."""

    def log(self, daemon: str) -> Path:
        """Return the log of a daemon; slurmd's name here is ``slurmd-<host>``."""
        return self.logs / f"{daemon}.log"

    def output(self, daemon: str) -> Path:
        """Return the file with a daemon's output before it opens its log."""
        return self.logs / f"{daemon}.out"

    def device(self, index: int) -> Path:
        """Return the device file of a GPU; Slurm takes the GPU's number from the digits at the end."""
        return self.devices / f"gpu{index}"


def interface_name(name: str) -> str:
    """Return the name of the machine's interface to a sandbox, its only network part outside namespaces."""
    plain = f"sbx-{name}"
    if len(plain) <= _INTERFACE_LIMIT:
        return plain
    return f"sbx-{name[:4]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
