"""The layout of ranks, instances and phases over nodes and GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """The distribution of ranks over nodes.

    Ranks are distributed in blocks: rank ``r`` runs on node ``r // ranks_per_node``.
    TensorRT-LLM computes a rank's node and device in the same way (``worldConfig.h``).
    """

    world_size: int
    nodes: int
    ranks_per_node: int
    gpus_per_node: int
    """GPUs requested on each node, all of which every task sees; 0: none."""


def make_layout(world_size: int, nodes: int | None, gpus_per_node: int) -> Layout:
    """Spread ``world_size`` ranks evenly over nodes.

    Args:
        world_size: tp * pp * cp of the engine.
        nodes: number of nodes; ``None``: as few as the GPUs allow, or one without GPUs.
        gpus_per_node: number of GPUs of each node of the cluster; 0 for none.

    The rules ``ranks_spread`` and ``gpus_suffice`` refuse impossible layouts earlier.
    """
    if nodes is None:
        divisors = (ranks for ranks in range(gpus_per_node, 0, -1) if world_size % ranks == 0)
        nodes = world_size // next(divisors, world_size)
    ranks_per_node, rest = divmod(world_size, nodes)
    assert not rest, f"{world_size} ranks on {nodes} nodes"
    assert not gpus_per_node or ranks_per_node <= gpus_per_node, f"{ranks_per_node} ranks a node"
    return Layout(world_size, nodes, ranks_per_node, ranks_per_node if gpus_per_node else 0)


@dataclass(frozen=True)
class PlacedServer:
    """The place of a server of a disaggregated run."""

    number: int
    """Number of the server among all servers of the run."""
    first_node: int
    """Number of the server's first node within the job, or within its component of a heterogeneous job."""
    first_gpu: int
    """Number of the server's first GPU on that node, among the job's GPUs."""


@dataclass(frozen=True)
class ServerGroup:
    """The servers of a phase of a disaggregated run, which all have the same number of ranks."""

    role: str
    """``context`` or ``generation``."""
    layout: Layout
    """Layout of one server."""
    servers: tuple[PlacedServer, ...]
    component: int | None = None
    """Number of the heterogeneous job's component that belongs to this phase; ``None``: the phases share
    nodes."""


@dataclass(frozen=True)
class Instances:
    """The distribution of server instances over nodes: several on each node, or several nodes for each."""

    count: int
    """Number of instances."""
    per_node: int
    """Instances on each node; if nodes differ, on the fullest node."""
    layout: Layout
    """Layout of one instance, with its own GPUs."""
    groups: tuple[ServerGroup, ...] = ()
    """The servers of a disaggregated run, by phase; ``layout`` is then the first group's."""

    @property
    def components(self) -> tuple[Layout, ...]:
        """Nodes and ranks that the job requests; several elements only for a heterogeneous job."""
        if any(group.component is not None for group in self.groups):
            return tuple(_allocation((group,)) for group in self.groups)
        if self.groups:
            return (_allocation(self.groups),)
        instance, nodes = self.layout, self.count * self.layout.nodes // self.per_node
        on_node = self.per_node * instance.ranks_per_node, self.per_node * instance.gpus_per_node
        return (Layout(self.count * instance.world_size, nodes, *on_node),)

    @property
    def nodes(self) -> int:
        """Number of nodes of the job, in all its components."""
        return sum(component.nodes for component in self.components)

    @property
    def world_sizes(self) -> list[int]:
        """Number of ranks of each instance."""
        alike = [self.layout.world_size] * self.count
        return [group.layout.world_size for group in self.groups for _ in group.servers] or alike

    @property
    def behind_proxy(self) -> int:
        """Number of servers among which the first node's proxy chooses; 1 (the front) if disaggregated."""
        return 1 if self.groups else self.count

    def first_node(self, instance: int) -> int:
        """Return the number, within the job, of the node of the instance's rank 0."""
        before = 0
        for group in self.groups:
            for server in group.servers:
                if server.number == instance:
                    return before + server.first_node
            # Nodes are numbered through all components in their order.
            before += 0 if group.component is None else _allocation((group,)).nodes
        return instance // self.per_node * self.layout.nodes

    @property
    def leaders(self) -> dict[int, list[int]]:
        """The instances whose rank 0 runs on each node, by the node's number within the job."""
        nodes: dict[int, list[int]] = {}
        for instance in range(self.count):
            nodes.setdefault(self.first_node(instance), []).append(instance)
        return nodes


def _allocation(groups: tuple[ServerGroup, ...]) -> Layout:
    """Return an allocation of equal nodes, each large enough for the servers of the fullest node."""
    ranks: dict[int, int] = {}
    for group in groups:
        for server in group.servers:
            for node in range(server.first_node, server.first_node + group.layout.nodes):
                ranks[node] = ranks.get(node, 0) + group.layout.ranks_per_node
    fullest = max(ranks.values())
    has_gpus = any(group.layout.gpus_per_node for group in groups)
    return Layout(len(ranks) * fullest, len(ranks), fullest, fullest if has_gpus else 0)


@dataclass(frozen=True)
class WantedGroup:
    """The servers of a phase, before they are placed."""

    role: str
    servers: int
    """Number of servers."""
    world_size: int
    """Number of ranks of each server."""
    gpus_per_node: int
    """Number of GPUs of each node of the phase; 0 for none."""


def place_groups(wanted: Sequence[WantedGroup], *, spread: bool, apart: bool = False) -> Instances:
    """Place the servers of a disaggregated run, in their order, each on as few nodes as the GPUs allow.

    Args:
        spread: whether each server gets nodes of its own.
        apart: whether each group gets nodes of its own, as a component of a heterogeneous job.
    """
    node = used = number = 0
    groups, on_node = [], dict[tuple[int | None, int], int]()
    for place, group in enumerate(wanted):
        component = place if apart else None
        if apart:
            node = used = 0
        layout, servers = make_layout(group.world_size, None, group.gpus_per_node), []
        for _ in range(group.servers):
            is_full = group.gpus_per_node and used + layout.ranks_per_node > group.gpus_per_node
            if used and (spread or layout.nodes > 1 or is_full):
                node, used = node + 1, 0
            servers.append(PlacedServer(number, node, used))
            on_node[component, node] = on_node.get((component, node), 0) + 1
            number, used = number + 1, used + layout.ranks_per_node
            if layout.nodes > 1:
                node, used = node + layout.nodes, 0
        groups.append(ServerGroup(group.role, layout, tuple(servers), component))
    return Instances(number, max(on_node.values()), groups[0].layout, groups=tuple(groups))


def place(count: int, world_size: int, *, nodes: int | None, gpus_per_node: int, spread: bool) -> Instances:
    """Spread ``count`` instances of ``world_size`` ranks each.

    Args:
        nodes: number of nodes for all instances; ``None``: as few as the GPUs allow, or one without GPUs.
        gpus_per_node: number of GPUs of each node of the cluster; 0 for none.
        spread: whether each instance gets nodes of its own.

    The rules ``ranks_spread`` and ``gpus_suffice`` refuse impossible layouts earlier.
    """
    if nodes is not None:
        per_instance = max(1, nodes // count)
        return Instances(count, max(1, count // nodes), make_layout(world_size, per_instance, gpus_per_node))
    layout = make_layout(world_size, None, gpus_per_node)
    if layout.nodes > 1 or spread:
        return Instances(count, 1, layout)
    most = gpus_per_node // world_size if gpus_per_node else count
    # The largest number per node that divides the count, so that all nodes are equal.
    per_node = next(number for number in range(most, 0, -1) if count % number == 0)
    return Instances(count, per_node, layout)


def one_node(world_size: int, gpus: int) -> Layout:
    """Return a layout of all ranks on one node with ``gpus`` GPUs, for modes without one GPU per rank."""
    return Layout(world_size, 1, world_size, gpus)
