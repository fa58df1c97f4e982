"""Names, size and state folder of one sandbox: pure values that touch nothing."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from trtllm_hpc.config.cluster import REAL_GPU, SANDBOX_ROOT
from trtllm_hpc.errors import SandboxError

ROOT = Path(SANDBOX_ROOT)
"""Parent of all state folders. ``/run`` is empty after a boot, when no sandbox is up either."""

POOLS = ("10.97", "10.213", "172.29", "198.18")
"""The /16 networks of subnets: private ranges that few sites use, then RFC 2544's beside VPNs."""

JOB_IDS = 50_000
"""How many job ids each subnet has to itself; those of the last one end below Slurm's MaxJobId."""

MAX_NODES = 32
MAX_GPUS = 16

_INTERFACE_LIMIT = 15
"""The kernel's IFNAMSIZ without the final NUL."""


def check_name(name: str) -> str:
    """Return the name if it can be part of host names and file names. Raises SandboxError otherwise."""
    if re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?", name):
        return name
    raise SandboxError(
        f"{name!r} cannot name a sandbox: use 1 to 32 lower-case letters, digits and inner hyphens.",
        hint="trtllm-hpc sandbox up --name try-1",
    )


@dataclass(frozen=True)
class Shape:
    """How large a sandbox is."""

    nodes: int
    gpus_per_node: int
    real_gpus: bool = False
    """Whether the GPUs are the machine's own; otherwise nodes only claim to have them."""

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


def interface_name(name: str) -> str:
    """The machine's interface to the sandbox, the only part of its network outside the namespaces."""
    plain = f"sbx-{name}"
    if len(plain) <= _INTERFACE_LIMIT:
        return plain
    return f"sbx-{name[:4]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
