"""Names, addresses and files of one sandbox: pure values, nothing is touched."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from trtllm_hpc.config.cluster import SANDBOX_ROOT
from trtllm_hpc.errors import SandboxError

ROOT = Path(SANDBOX_ROOT)
"""Where sandboxes keep their state; ``/run`` is empty after a boot, as sandboxes are."""

POOLS = ("10.97", "10.213", "172.29", "198.18")
"""The /16 networks that subnets are taken from: private ranges that few sites use, then
RFC 2544's, for machines where a VPN routes all private addresses."""

JOB_IDS = 50_000
"""How many job ids each subnet has to itself; those of the last one end below Slurm's MaxJobId."""

MAX_NODES = 32
MAX_GPUS = 16

_INTERFACE_LIMIT = 15
"""The kernel's IFNAMSIZ less its NUL."""


def check_name(name: str) -> str:
    """The name, if host names and files can be made of it.

    Raises:
        SandboxError: it holds anything but lower-case letters, digits and
            inner hyphens, or more than 32 characters.
    """
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

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MAX_NODES:
            raise SandboxError(f"A sandbox has 1 to {MAX_NODES} nodes, not {self.nodes}.")
        if not 0 <= self.gpus_per_node <= MAX_GPUS:
            raise SandboxError(f"A sandbox node has 0 to {MAX_GPUS} GPUs, not {self.gpus_per_node}.")

    def __str__(self) -> str:
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        gpus = "1 GPU" if self.gpus_per_node == 1 else f"{self.gpus_per_node} GPUs"
        return f"{nodes} with {gpus} each"


@dataclass(frozen=True)
class Member:
    """The head or a node: a host name and its address on the bridge."""

    name: str
    address: str


@dataclass(frozen=True)
class Layout:
    """Who is who in a sandbox of a name, a shape and a subnet (``10.x.y``, a /24)."""

    name: str
    shape: Shape
    subnet: str

    @property
    def head(self) -> Member:
        """Runs munge, the database, slurmdbd and slurmctld, and holds the bridge."""
        return Member(f"sbx-{self.name}-head", f"{self.subnet}.1")

    @property
    def nodes(self) -> list[Member]:
        """Run slurmd."""
        return [
            Member(f"sbx-{self.name}-n{index}", f"{self.subnet}.{10 + index}")
            for index in range(1, self.shape.nodes + 1)
        ]

    @property
    def machine_address(self) -> str:
        """The machine's own address on the bridge."""
        return f"{self.subnet}.254"

    @property
    def first_job_id(self) -> int:
        """Slurm's FirstJobId, different in every sandbox that is up.

        All nodes see the machine's ``/tmp``, where ranks name their folders by job id.
        """
        pool, number = self.subnet.rsplit(".", 1)
        return 1 + JOB_IDS * (256 * POOLS.index(pool) + int(number))

    @property
    def cluster(self) -> str:
        """Slurm's ClusterName, which is part of table names in the database."""
        return "sbx_" + self.name.replace("-", "_")


def interface_name(name: str) -> str:
    """The machine's interface to the sandbox: the one thing of it outside its namespaces."""
    plain = f"sbx-{name}"
    if len(plain) <= _INTERFACE_LIMIT:
        return plain
    return f"sbx-{name[:4]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


@dataclass(frozen=True)
class Folder:
    """The state folder of a sandbox and every file in it."""

    path: Path

    @classmethod
    def of(cls, name: str) -> Folder:
        """The folder of the sandbox called ``name``."""
        return cls(ROOT / check_name(name))

    @property
    def state(self) -> Path:
        """Shape and subnet, and whether the sandbox came up whole."""
        return self.path / "state.json"

    @property
    def etc(self) -> Path:
        """Slurm's configuration files; slurmdbd looks for its own beside slurm.conf."""
        return self.path / "etc"

    @property
    def slurm_conf(self) -> Path:
        """What SLURM_CONF names."""
        return self.etc / "slurm.conf"

    @property
    def database_conf(self) -> Path:
        """MariaDB's options."""
        return self.etc / "my.cnf"

    @property
    def hosts(self) -> Path:
        """Stands for /etc/hosts in the sandbox."""
        return self.etc / "hosts"

    @property
    def init(self) -> Path:
        """Process 1 of every member. Its path marks the sandbox's processes."""
        return self.path / "init.sh"

    @property
    def stepd_source(self) -> Path:
        """The reaper, before each node copies it to a place where it may be run."""
        return self.path / "slurmstepd.py"

    @property
    def epilog_source(self) -> Path:
        """The epilog, before each node copies it to a place where it may be run."""
        return self.path / "epilog.sh"

    @property
    def private(self) -> Path:
        """Mount point of a tmpfs that each member has to itself; empty from outside."""
        return self.path / "private"

    @property
    def stepd(self) -> Path:
        """What slurmd starts in slurmstepd's place."""
        return self.private / "slurmstepd"

    @property
    def epilog(self) -> Path:
        """What slurmd runs when a job has ended."""
        return self.private / "epilog"

    @property
    def database_socket(self) -> Path:
        """Only the head sees it."""
        return self.private / "mariadb.socket"

    @property
    def munge(self) -> Path:
        """munged's files; the key is readable to root alone."""
        return self.path / "munge"

    @property
    def munge_key(self) -> Path:
        """The sandbox's own key."""
        return self.munge / "munge.key"

    @property
    def munge_socket(self) -> Path:
        """Open to every user of the machine, as on a real cluster."""
        return self.munge / "munge.socket"

    @property
    def controller(self) -> Path:
        """slurmctld's StateSaveLocation."""
        return self.path / "slurmctld"

    @property
    def logs(self) -> Path:
        """One file a daemon."""
        return self.path / "log"

    def log(self, daemon: str) -> Path:
        """What one daemon writes; slurmd's is ``slurmd-<host>``."""
        return self.logs / f"{daemon}.log"

    def output(self, daemon: str) -> Path:
        """What one daemon says before its log is open."""
        return self.logs / f"{daemon}.out"

    @property
    def devices(self) -> Path:
        """The device files that stand for GPUs."""
        return self.path / "dev"

    def device(self, index: int) -> Path:
        """One GPU; Slurm takes its number from the name's last digits."""
        return self.devices / f"gpu{index}"
