"""Ranks to nodes: how the world of an engine is spread."""

from __future__ import annotations

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
class Instances:
    """How the instances of the server share the nodes: several on each node, or several nodes for each."""

    count: int
    per_node: int
    """Instances on each node."""
    layout: Layout
    """Of one instance, with its own GPUs."""
    per_gpu: int = 1
    """Instances that share the same GPUs."""

    @property
    def allocation(self) -> Layout:
        """All instances together: what the job asks for."""
        one = self.layout
        return Layout(
            world_size=self.count * one.world_size,
            nodes=self.count * one.nodes // self.per_node,
            ranks_per_node=self.per_node * one.ranks_per_node,
            gpus_per_node=-(-self.per_node // self.per_gpu) * one.gpus_per_node,
        )

    def first_node(self, instance: int) -> int:
        """Number of the node, within the job, of the instance's leader."""
        return instance // self.per_node * self.layout.nodes

    @property
    def leaders(self) -> dict[int, list[int]]:
        """The instances whose leaders are on each node, by the node's number within the job."""
        nodes: dict[int, list[int]] = {}
        for instance in range(self.count):
            nodes.setdefault(self.first_node(instance), []).append(instance)
        return nodes


def place(
    count: int, world_size: int, *, nodes: int | None, gpus_per_node: int, per_gpu: int, spread: bool
) -> Instances:
    """Spread ``count`` instances of ``world_size`` ranks each.

    Args:
        nodes: for all instances together; ``None`` takes as few as the GPUs allow, one without GPUs.
        gpus_per_node: GPUs that the cluster has on each node; 0 for none.
        per_gpu: instances that share the same GPUs.
        spread: no two instances on a node.

    The rules ``ranks_spread`` and ``gpus_suffice`` have refused what cannot be spread.
    """
    if nodes is not None:
        per_instance = max(1, nodes // count)
        return Instances(
            count, max(1, count // nodes), make_layout(world_size, per_instance, gpus_per_node), per_gpu
        )
    one = make_layout(world_size, None, gpus_per_node)
    if one.nodes > 1 or spread:
        return Instances(count, 1, one, per_gpu)
    room = gpus_per_node // world_size * per_gpu if gpus_per_node else count
    return Instances(count, next(each for each in range(room, 0, -1) if count % each == 0), one, per_gpu)


def one_node(world_size: int, gpus: int) -> Layout:
    """All ranks on one node, with ``gpus`` GPUs between them; for modes where ranks are not GPUs."""
    return Layout(world_size, 1, world_size, gpus)
