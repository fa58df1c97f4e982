"""Ranks to nodes: how the world of an engine is spread."""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_hpc.errors import RenderError


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
        nodes: nodes asked for; ``None`` takes as few as the GPUs allow.
        gpus_per_node: GPUs that the cluster has on each node; 0 for none.

    Raises:
        RenderError: the ranks do not spread evenly, or a node has too few GPUs.
    """
    count = nodes if nodes is not None else _fewest_nodes(world_size, gpus_per_node)
    if world_size % count:
        raise RenderError(
            f"{world_size} ranks cannot be spread evenly over {count} nodes.",
            hint=f"set serve.nodes to a divisor of {world_size}",
        )
    ranks_per_node = world_size // count
    if gpus_per_node and ranks_per_node > gpus_per_node:
        raise RenderError(
            f"{ranks_per_node} ranks a node need {ranks_per_node} GPUs, but a node here has {gpus_per_node}.",
            hint=f"set serve.nodes to {_fewest_nodes(world_size, gpus_per_node)} or lower the parallelism",
        )
    return Layout(world_size, count, ranks_per_node, ranks_per_node if gpus_per_node else 0)


def one_node(world_size: int, gpus: int) -> Layout:
    """All ranks on one node, with ``gpus`` GPUs between them; for modes where ranks are not GPUs."""
    return Layout(world_size, 1, world_size, gpus)


def _fewest_nodes(world_size: int, gpus_per_node: int) -> int:
    if not gpus_per_node:
        return 1
    return world_size // next(ranks for ranks in range(gpus_per_node, 0, -1) if world_size % ranks == 0)
