from __future__ import annotations

import pytest

from trtllm_hpc.layout import Layout, WantedGroup, make_layout, place, place_groups

CASES = [
    # world, nodes, GPUs a node -> nodes, ranks a node, GPUs asked for
    (1, None, 0, (1, 1, 0)),
    (2, 2, 0, (2, 1, 0)),
    (2, 2, 4, (2, 1, 1)),
    (8, None, 8, (1, 8, 8)),
    (8, None, 4, (2, 4, 4)),
    (8, 4, 4, (4, 2, 2)),
    (6, None, 4, (2, 3, 3)),
    (7, None, 4, (7, 1, 1)),
    (16, None, 6, (4, 4, 4)),
    (64, None, 0, (1, 64, 0)),
]


@pytest.mark.parametrize(("world", "nodes", "gpus", "expected"), CASES)
def test_ranks_are_spread_evenly_over_as_few_nodes_as_fit(
    world: int, nodes: int | None, gpus: int, expected: tuple[int, int, int]
) -> None:
    count, ranks_per_node, asked = expected
    assert make_layout(world, nodes, gpus) == Layout(world, count, ranks_per_node, asked)


PLACES = [
    # instances, world, nodes, GPUs a node, spread -> instances a node, all: nodes, ranks, GPUs
    (1, 8, None, 4, False, (1, (2, 4, 4))),
    (2, 2, None, 0, False, (2, (1, 4, 0))),
    (2, 2, None, 0, True, (1, (2, 2, 0))),
    (2, 2, 4, 0, False, (1, (4, 1, 0))),
    (4, 2, None, 4, False, (2, (2, 4, 4))),
    (3, 2, None, 4, False, (1, (3, 2, 2))),
    (4, 2, None, 4, True, (1, (4, 2, 2))),
    (2, 8, None, 4, False, (1, (4, 4, 4))),
]


@pytest.mark.parametrize(("count", "world", "nodes", "gpus", "spread", "expected"), PLACES)
def test_instances_are_placed_as_asked(
    count: int,
    world: int,
    nodes: int | None,
    gpus: int,
    spread: bool,
    expected: tuple[int, tuple[int, int, int]],
) -> None:
    placed = place(count, world, nodes=nodes, gpus_per_node=gpus, spread=spread)
    assert (placed.per_node, placed.components) == (expected[0], (Layout(count * world, *expected[1]),))
    assert sorted(number for numbers in placed.leaders.values() for number in numbers) == list(range(count))
    assert set(placed.leaders) <= set(range(placed.nodes))


SPLIT = [
    # role, servers, ranks of each; GPUs a node, spread, apart -> node and GPU of each, components
    ([("context", 2, 2), ("generation", 1, 4)], 4, False, False, [(0, 0), (0, 2), (1, 0)],
     (Layout(8, 2, 4, 4),)),
    ([("context", 2, 2), ("generation", 1, 4)], 4, True, False, [(0, 0), (1, 0), (2, 0)],
     (Layout(12, 3, 4, 4),)),
    # What does not fit beside the others begins a node, and what takes several has them to itself.
    ([("context", 1, 1), ("generation", 1, 16), ("generation", 2, 1)], 8, False, False,
     [(0, 0), (1, 0), (3, 0), (3, 1)], (Layout(32, 4, 8, 8),)),
    ([("context", 3, 3)], 8, False, False, [(0, 0), (0, 3), (1, 0)], (Layout(12, 2, 6, 6),)),
    # Without GPUs all are on one node.
    ([("context", 1, 1), ("generation", 2, 2)], 0, False, False, [(0, 0), (0, 1), (0, 3)],
     (Layout(5, 1, 5, 0),)),
    # Phases with nodes of their own.
    ([("context", 2, 2), ("generation", 2, 8)], 8, False, True, [(0, 0), (0, 2), (1, 0), (2, 0)],
     (Layout(4, 1, 4, 4), Layout(16, 2, 8, 8))),
]  # fmt: skip


@pytest.mark.parametrize(("wanted", "gpus", "spread", "apart", "places", "components"), SPLIT)
def test_servers_of_both_phases_are_placed(
    wanted: list[tuple[str, int, int]],
    gpus: int,
    spread: bool,
    apart: bool,
    places: list[tuple[int, int]],
    components: tuple[Layout, ...],
) -> None:
    placed = place_groups([WantedGroup(*group, gpus) for group in wanted], spread=spread, apart=apart)
    found = [server for group in placed.groups for server in group.servers]
    assert [(placed.first_node(it.number), it.first_gpu) for it in found] == places
    assert (placed.components, placed.behind_proxy) == (components, 1)
    assert placed.world_sizes == [ranks for _, count, ranks in wanted for _ in range(count)]
