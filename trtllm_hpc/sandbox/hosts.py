"""Names and addresses of one sandbox: pure values that touch nothing."""

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


@dataclass(frozen=True)
class Host:
    """Host name and address of the head or of a compute node."""

    name: str
    address: str
    """IP address on the sandbox's bridge."""


@dataclass(frozen=True)
class SandboxLayout:
    """Hosts and addresses of a sandbox."""

    name: str
    shape: Shape
    subnet: str
    """The first three numbers of a /24, such as ``10.97.0``."""
    machine_gpus: tuple[str, ...] = ()
    """Device files of all GPUs that the machine has, such as ``nvidia0``; only of a shape with real GPUs."""

    @property
    def head(self) -> Host:
        """The head node, with munge, the database, slurmdbd, slurmctld and the bridge."""
        return Host(f"sbx-{self.name}-head", f"{self.subnet}.1")

    @property
    def nodes(self) -> list[Host]:
        """The compute nodes, with slurmd."""
        return [
            Host(f"sbx-{self.name}-n{index}", f"{self.subnet}.{10 + index}")
            for index in range(1, self.shape.nodes + 1)
        ]

    def gpus_of(self, node: str) -> tuple[str, ...]:
        """The device files of a compute node's GPUs; of nodes that only claim GPUs there are none."""
        index = [host.name for host in self.nodes].index(node)
        count = self.shape.gpus_per_node
        return self.machine_gpus[index * count : (index + 1) * count]

    @property
    def hides_gpus(self) -> bool:
        """Whether there are GPUs that a node must not see, because it has not got them all."""
        return len(self.machine_gpus) > self.shape.gpus_per_node

    @property
    def first_job_id(self) -> int:
        """Slurm's FirstJobId, different in every sandbox that is up.

        All nodes see the machine's ``/tmp``, where ranks name their folders by job id.
        """
        pool, number = self.subnet.rsplit(".", 1)
        return 1 + JOB_IDS * (256 * POOLS.index(pool) + int(number))

    @property
    def cluster(self) -> str:
        """Slurm's ClusterName, which becomes part of the database's table names."""
        return "sbx_" + self.name.replace("-", "_")


def interface_name(name: str) -> str:
    """The machine's interface to the sandbox, the only part of its network outside the namespaces."""
    plain = f"sbx-{name}"
    if len(plain) <= _INTERFACE_LIMIT:
        return plain
    return f"sbx-{name[:4]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
