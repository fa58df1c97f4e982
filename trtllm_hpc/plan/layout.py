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


def one_node(world_size: int, gpus: int) -> Layout:
    """All ranks on one node, with ``gpus`` GPUs between them; for modes where ranks are not GPUs."""
    return Layout(world_size, 1, world_size, gpus)
