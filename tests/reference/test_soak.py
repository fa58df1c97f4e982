"""A thousand requests, some cancelled midway and some malformed: every answer is right, nothing leaks."""

from __future__ import annotations

import random
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tritonclient.utils import InferenceServerException

from .clients import ask, stream, token_inputs, tokens, wait_idle
from .conftest import Generate
from .servers import World

pytestmark = pytest.mark.triton

REQUESTS = 1000
AT_ONCE = 32
LONGEST = 24
MALFORMED: tuple[dict[str, Any], ...] = (
    {"temperature": -1.0},
    {"input_ids": [[1, 600]]},
    {"request_output_len": 0},
    {"bad_words_list": [[[4], [2]]]},
    {"input_lengths": 9},
)
MOST_GROWTH = 10e6
"""Bytes by which the model's process may grow in the second half; its allocator is not exact."""


class Traffic:
    """Requests whose right answers are known."""

    def __init__(self, world: World, greedy: Generate) -> None:
        self._world = world
        self._answers = {
            start: greedy([1, start], LONGEST, None) for start in random.Random(0).sample(range(3, 500), 12)
        }

    def one(self, number: int) -> str:
        """Send a request and check what comes back; returns its kind."""
        dice = random.Random(number)
        prompt, new = dice.choice(list(self._answers.items()))
        count = dice.randint(1, LONGEST)
        inputs = token_inputs([1, prompt], count, streaming=dice.random() < 0.5)
        if number % 10 == 0:
            (error,) = ask(self._world, "tensorrt_llm", {**inputs, **dice.choice(MALFORMED)})
            assert isinstance(error, InferenceServerException), error
            return "malformed"
        if number % 5 == 1:
            with stream(self._world) as opened:
                opened.send("tensorrt_llm", {**inputs, "request_output_len": 100, "streaming": True})
                opened.next()
                opened.cancel()
            return "cancelled"
        answers = ask(self._world, "tensorrt_llm", {**inputs, "exclude_input_in_output": True})
        assert [token for answer in answers for token in tokens(answer)] == new[:count]
        return "answered"

    def run(self, numbers: range) -> list[str]:
        """Send many requests, so many at once."""
        with ThreadPoolExecutor(AT_ONCE) as threads:
            return list(threads.map(self.one, numbers))


def resident(world: World) -> int:
    """Bytes of memory of the server and its models' processes."""
    found = 0
    for pid in (world.ranks[0].pid, *world.children(0)):
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        match = re.search(r"VmRSS:\s+(\d+) kB", status)
        found += int(match[1]) * 1024 if match else 0
    return found


def test_thousand_requests_leak_nothing(alone: World, greedy: Generate) -> None:
    traffic = Traffic(alone, greedy)
    kinds = traffic.run(range(REQUESTS // 2))
    wait_idle(alone)
    memory, regions = resident(alone), alone.shared_memory()
    kinds += traffic.run(range(REQUESTS // 2, REQUESTS))
    wait_idle(alone)
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "malformed": 100,
        "cancelled": 200,
        "answered": 700,
    }
    assert alone.shared_memory() == regions
    assert resident(alone) - memory < MOST_GROWTH
