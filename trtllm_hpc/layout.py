"""Ranks to nodes: how the world of an engine is spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """Where the ranks of the serve step run.

    Ranks are distributed in blocks: rank ``r`` runs on node ``r // ranks_per_node``.
    TensorRT-LLM computes a rank's node and device the same way (``worldConfig.h``).
    """

    world_size: int
    nodes: int
    ranks_per_node: int
    gpus_per_node: int
    """GPUs asked for on each node; every task sees all of them. 0 asks for none."""


def make_layout(world_size: int, nodes: int | None, gpus_per_node: int) -> Layout:
    """Spread ``world_size`` ranks evenly over nodes.

    Args:
        world_size: tp * pp * cp of the engine.
        nodes: nodes asked for; ``None`` takes as few as the GPUs allow, one without GPUs.
        gpus_per_node: GPUs that the cluster has on each node; 0 for none.

    The rules ``ranks_spread`` and ``gpus_suffice`` have refused what cannot be spread.
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
    """Where one server of a disaggregated run is."""

    number: int
    """Among all servers of the run."""
    first_node: int
    """Within the job, or within the component of a heterogeneous one."""
    first_gpu: int
    """On that node, among those of the job."""


@dataclass(frozen=True)
class ServerGroup:
    """The servers of one phase of a disaggregated run, which all have as many ranks."""

    role: str
    """``context`` or ``generation``."""
    layout: Layout
    """Of one server."""
    servers: tuple[PlacedServer, ...]
    component: int | None = None
    """Of a heterogeneous job, whose nodes are this phase's alone; ``None``: the phases share nodes."""


@dataclass(frozen=True)
class Instances:
    """How the instances of the server share the nodes: several on each node, or several nodes for each."""

    count: int
    per_node: int
    """Instances on each node; where they are not alike, on the fullest one."""
    layout: Layout
    """Of one instance, with its own GPUs."""
    groups: tuple[ServerGroup, ...] = ()
    """The servers of a disaggregated run, which are not alike; ``layout`` is the first group's."""

    @property
    def components(self) -> tuple[Layout, ...]:
        """What the job asks for; several only of a heterogeneous one."""
        if any(group.component is not None for group in self.groups):
            return tuple(_allocation((group,)) for group in self.groups)
        if self.groups:
            return (_allocation(self.groups),)
        one, nodes = self.layout, self.count * self.layout.nodes // self.per_node
        on_node = self.per_node * one.ranks_per_node, self.per_node * one.gpus_per_node
        return (Layout(self.count * one.world_size, nodes, *on_node),)

    @property
    def nodes(self) -> int:
        """Nodes of the job, in all its components."""
        return sum(one.nodes for one in self.components)

    @property
    def world_sizes(self) -> list[int]:
        """Ranks of each instance."""
        alike = [self.layout.world_size] * self.count
        return [group.layout.world_size for group in self.groups for _ in group.servers] or alike

    @property
    def behind_proxy(self) -> int:
        """Servers among which the first node's proxy chooses: of a disaggregated run only the front."""
        return 1 if self.groups else self.count

    def first_node(self, instance: int) -> int:
        """Number of the node, within the job, of the instance's leader."""
        before = 0
        for group in self.groups:
            for server in group.servers:
                if server.number == instance:
                    return before + server.first_node
            # The nodes of a component follow those of the component before.
            before += 0 if group.component is None else _allocation((group,)).nodes
        return instance // self.per_node * self.layout.nodes

    @property
    def leaders(self) -> dict[int, list[int]]:
        """The instances that the proxy of each node, by its number within the job, passes requests on to."""
        nodes: dict[int, list[int]] = {}
        for instance in range(self.count):
            nodes.setdefault(self.first_node(instance), []).append(instance)
        return nodes


def _allocation(groups: tuple[ServerGroup, ...]) -> Layout:
    """Return nodes that are alike, each large enough for the fullest."""
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
    """The servers of one phase, before they have a place."""

    role: str
    servers: int
    world_size: int
    """Ranks of each."""
    gpus_per_node: int
    """GPUs that the phase's nodes have; 0 for none."""


def place_groups(wanted: Sequence[WantedGroup], *, spread: bool, apart: bool = False) -> Instances:
    """Place the servers of a disaggregated run, in their order, each on as few nodes as the GPUs allow.

    Args:
        spread: no two servers on a node.
        apart: each group has nodes of its own, a component of a heterogeneous job.
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
        nodes: for all instances together; ``None`` takes as few as the GPUs allow, one without GPUs.
        gpus_per_node: GPUs that the cluster has on each node; 0 for none.
        spread: no two instances on a node.

    The rules ``ranks_spread`` and ``gpus_suffice`` have refused what cannot be spread.
    """
    if nodes is not None:
        per_instance = max(1, nodes // count)
        return Instances(count, max(1, count // nodes), make_layout(world_size, per_instance, gpus_per_node))
    one = make_layout(world_size, None, gpus_per_node)
    if one.nodes > 1 or spread:
        return Instances(count, 1, one)
    room = gpus_per_node // world_size if gpus_per_node else count
    return Instances(count, next(each for each in range(room, 0, -1) if count % each == 0), one)


def one_node(world_size: int, gpus: int) -> Layout:
    """All ranks on one node, with ``gpus`` GPUs between them; for modes where ranks are not GPUs."""
    return Layout(world_size, 1, world_size, gpus)
