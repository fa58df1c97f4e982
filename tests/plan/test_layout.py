from __future__ import annotations

import re
import time

import pytest

from trtllm_hpc.layout import Layout, WantedGroup, make_layout, place, place_groups, seats

CASES = [
    # world, nodes, GPUs a node -> nodes, ranks a node, GPUs asked for
    (1, None, 0, (1, 1, 0)),
    (1, None, 8, (1, 1, 1)),
    (2, 2, 0, (2, 1, 0)),
    (2, None, 4, (1, 2, 2)),
    (2, 2, 4, (2, 1, 1)),
    (8, None, 8, (1, 8, 8)),
    (8, None, 4, (2, 4, 4)),
    (8, 4, 4, (4, 2, 2)),
    (6, None, 4, (2, 3, 3)),
    (7, None, 4, (7, 1, 1)),
    (16, None, 6, (4, 4, 4)),
    (64, 16, 8, (16, 4, 4)),
    (64, None, 0, (1, 64, 0)),
]


@pytest.mark.parametrize(("world", "nodes", "gpus", "expected"), CASES)
def test_ranks_are_spread_evenly_over_as_few_nodes_as_fit(
    world: int, nodes: int | None, gpus: int, expected: tuple[int, int, int]
) -> None:
    count, ranks_per_node, asked = expected
    assert make_layout(world, nodes, gpus) == Layout(world, count, ranks_per_node, asked)


def test_a_large_prime_world_is_laid_out_at_once() -> None:
    world = 2**31 - 1
    started = time.process_time()
    assert make_layout(world, None, 8).nodes == world
    assert time.process_time() - started < 1


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
    # role, servers, ranks of each; GPUs a node, spread -> seats, and what the job asks for
    ([("context", 2, 2), ("generation", 1, 4)], 4, False,
     ["context server 0: 2 ranks on node 0, GPUs 0-1", "context server 1: 2 ranks on node 0, GPUs 2-3",
      "generation server 2: 4 ranks on node 1, GPUs 0-3"], Layout(8, 2, 4, 4)),
    ([("context", 2, 2), ("generation", 1, 4)], 4, True,
     ["context server 0: 2 ranks on node 0, GPUs 0-1", "context server 1: 2 ranks on node 1, GPUs 0-1",
      "generation server 2: 4 ranks on node 2, GPUs 0-3"], Layout(12, 3, 4, 4)),
    # What does not fit beside the others begins a node, and what takes several has them to itself.
    ([("context", 1, 1), ("generation", 1, 16), ("generation", 2, 1)], 8, False,
     ["context server 0: 1 rank on node 0, GPU 0", "generation server 1: 16 ranks on nodes 1-2, GPUs 0-7",
      "generation server 2: 1 rank on node 3, GPU 0", "generation server 3: 1 rank on node 3, GPU 1"],
     Layout(32, 4, 8, 8)),
    ([("context", 3, 3)], 8, False,
     ["context server 0: 3 ranks on node 0, GPUs 0-2", "context server 1: 3 ranks on node 0, GPUs 3-5",
      "context server 2: 3 ranks on node 1, GPUs 0-2"], Layout(12, 2, 6, 6)),
    # Without GPUs all are on one node.
    ([("context", 1, 1), ("generation", 2, 2)], 0, False,
     ["context server 0: 1 rank on node 0", "generation server 1: 2 ranks on node 0",
      "generation server 2: 2 ranks on node 0"], Layout(5, 1, 5, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("wanted", "gpus", "spread", "expected", "allocation"), SPLIT)
def test_servers_of_both_phases_have_their_seats(
    wanted: list[tuple[str, int, int]], gpus: int, spread: bool, expected: list[str], allocation: Layout
) -> None:
    placed = place_groups([WantedGroup(*group, gpus) for group in wanted], spread=spread)
    assert seats(placed) == expected
    assert (placed.components, placed.behind_proxy) == ((allocation,), 1)
    # "context server 0: 2 ranks on node 1, GPUs 0-1", or "on nodes 1-2, ...": a proxy on the first one.
    on = [re.search(r"server (\d+): .* on nodes? (\d+)", seat) for seat in expected]
    found = [(int(it[2]), int(it[1])) for it in on if it is not None]
    assert [(node, number) for node, numbers in placed.leaders.items() for number in numbers] == found
    assert placed.world_sizes == [ranks for _, count, ranks in wanted for _ in range(count)]


def test_phases_with_nodes_of_their_own_share_none() -> None:
    wanted = [WantedGroup("context", 2, 2, 4), WantedGroup("generation", 3, 8, 8)]
    placed = place_groups(wanted, spread=False, apart=True)
    assert seats(placed) == [
        "context server 0: 2 ranks on context node 0, GPUs 0-1",
        "context server 1: 2 ranks on context node 0, GPUs 2-3",
        "generation server 2: 8 ranks on generation node 0, GPUs 0-7",
        "generation server 3: 8 ranks on generation node 1, GPUs 0-7",
        "generation server 4: 8 ranks on generation node 2, GPUs 0-7",
    ]
    assert placed.components == (Layout(4, 1, 4, 4), Layout(24, 3, 8, 8))
    assert (placed.nodes, placed.leaders) == (4, {0: [0, 1], 1: [2], 2: [3], 3: [4]})
