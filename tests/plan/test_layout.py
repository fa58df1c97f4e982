from __future__ import annotations

import time

import pytest

from trtllm_hpc.errors import RenderError
from trtllm_hpc.plan.layout import Layout, make_layout

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


@pytest.mark.parametrize(
    ("world", "nodes", "gpus", "words", "hint"),
    [
        (8, 3, 8, "8 ranks cannot be spread evenly over 3 nodes", "a divisor of 8"),
        (2, 4, 0, "2 ranks cannot be spread evenly over 4 nodes", "a divisor of 2"),
        (8, 1, 4, "8 ranks a node need 8 GPUs, but a node here has 4", "set serve.nodes to 2"),
        (6, 1, 4, "6 ranks a node need 6 GPUs, but a node here has 4", "set serve.nodes to 2"),
    ],
)
def test_what_cannot_be_spread_is_refused_with_what_would_fit(
    world: int, nodes: int, gpus: int, words: str, hint: str
) -> None:
    with pytest.raises(RenderError, match=words) as caught:
        make_layout(world, nodes, gpus)
    assert caught.value.hint is not None and hint in caught.value.hint


def test_a_large_prime_world_is_laid_out_at_once() -> None:
    world = 2**31 - 1
    started = time.process_time()
    assert make_layout(world, None, 8).nodes == world
    assert time.process_time() - started < 1
