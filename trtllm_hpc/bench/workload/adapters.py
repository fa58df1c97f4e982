"""Which request has which LoRA adapter: by the shares, and from the seed alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from trtllm_hpc.bench.workload.random_numbers import Stream, random_source
from trtllm_hpc.bench.workload.request import Request
from trtllm_hpc.config.benchmark import Benchmark

_BLOCK = 12
"""Requests in which each adapter has its share, give or take one; halves, thirds and quarters exactly."""


def with_adapters(requests: Sequence[Request], settings: Benchmark) -> list[Request]:
    """Return the requests, each with the number of its adapter, if the workload has any."""
    if not settings.workload.lora:
        return list(requests)
    drawn = _draw(settings)
    return [
        request if task_id is None else replace(request, lora_task_id=task_id)
        for request, task_id in zip(requests, drawn, strict=False)
    ]


def _draw(settings: Benchmark) -> Iterator[int | None]:
    """Yield the adapter of one request after the other, ``None`` for none, without end.

    Within a block the points of a grid with a random start are in random order (systematic sampling): short
    measurements have the shares, too, and the adapters do not take turns in step with the instances of a
    server.
    """
    workload = settings.workload
    task_ids: list[int | None] = [*workload.lora_task_ids, None]
    # Rounded, so that a sum of thirds is no hair below 1.
    bounds = [round(bound, 9) for bound in accumulate(workload.lora_shares)]
    source = random_source(settings.seed, Stream.ADAPTERS)
    while True:
        points = (source.permutation(_BLOCK) + source.random_sample()) / _BLOCK
        for place in np.searchsorted(bounds, points, side="right").tolist():
            yield task_ids[place]
