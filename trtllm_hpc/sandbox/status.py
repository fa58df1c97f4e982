"""What is up in a sandbox and what is not."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from trtllm_hpc.sandbox.cluster import Cluster
from trtllm_hpc.sandbox.layout import Folder, Layout
from trtllm_hpc.sandbox.machines import marked_processes

PARTITIONS = ("batch", "debug")
"""Partitions of every sandbox, the default one first."""

HEALTHY = ("idle", "mixed", "allocated", "completing", "reserved", "planned")
"""Words of sinfo for a node that takes jobs; a trailing ``*`` means that it does not answer."""


@dataclass(frozen=True)
class NodeStatus:
    """One node, in sinfo's words."""

    name: str
    address: str
    state: str
    answers: bool
    """Whether its slurmd accepts connections; sinfo notices that it does not only after a while."""


@dataclass(frozen=True)
class Status:
    """Everything that ``sandbox status`` shows."""

    name: str
    state: str
    """``up``, ``down``, ``starting`` (some other command is at it) or ``degraded``."""
    nodes_wanted: int = 0
    gpus_per_node: int = 0
    slurm_conf: str = ""
    subnet: str = ""
    partitions: tuple[str, ...] = ()
    logs: str = ""
    daemons: dict[str, bool | None] = field(default_factory=dict)
    """Whether each daemon answers; ``None`` where only root can tell."""
    nodes: tuple[NodeStatus, ...] = ()
    problems: tuple[str, ...] = ()
    """What is wrong, a few words each."""

    def as_json(self) -> dict[str, Any]:
        """The status as plain JSON types."""
        return asdict(self)


def find_status(name: str, layout: Layout | None, cluster: Cluster | None, *, complete: bool) -> Status:
    """Ask everything that there is of a sandbox.

    Args:
        name: of the sandbox.
        layout: what its state file tells; ``None`` if there is none.
        cluster: the same, to be asked.
        complete: whether `up` came to its end.
    """
    if not marked_processes(Folder.of(name)):
        return Status(name, "down")
    if layout is None or cluster is None:
        return Status(name, "degraded", problems=("its state file is gone",))
    if not complete:
        return Status(name, "starting")
    daemons = _daemons(cluster)
    nodes = _nodes(cluster, cluster.node_states() if daemons["slurmctld"] else {})
    problems = [f"{daemon} does not answer" for daemon, answers in daemons.items() if answers is False]
    problems += [f"slurmd on {node.name} does not answer" for node in nodes if not node.answers]
    problems += [f"{node.name} is {node.state}" for node in nodes if node.state not in HEALTHY]
    return Status(
        name=name,
        state="degraded" if problems else "up",
        nodes_wanted=layout.shape.nodes,
        gpus_per_node=layout.shape.gpus_per_node,
        slurm_conf=str(cluster.folder.slurm_conf),
        subnet=f"{layout.subnet}.0/24",
        partitions=PARTITIONS,
        logs=str(cluster.folder.logs),
        daemons=daemons,
        nodes=nodes,
        problems=tuple(problems),
    )


def _daemons(cluster: Cluster) -> dict[str, bool | None]:
    return {
        "munged": cluster.munge_answers(),
        "mariadbd": cluster.database_answers(),
        "slurmdbd": cluster.accounting_answers(),
        "slurmctld": cluster.controller_answers(),
    }


def _nodes(cluster: Cluster, states: dict[str, str]) -> tuple[NodeStatus, ...]:
    return tuple(
        NodeStatus(
            node.name,
            node.address,
            "gone" if node.pid is None else states.get(node.name, "unknown"),
            cluster.node_answers(node),
        )
        for node in cluster.nodes
    )
