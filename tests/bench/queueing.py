"""A server that is not there: one queue, some slots, random service times."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable

from trtllm_hpc.bench.records import MEASURED, WARMUP, RequestRecord

from .make import request


def served(
    rate_per_s: float,
    *,
    requests: int,
    capacity_per_s: float = 100.0,
    slots: int = 4,
    warmup: int = 0,
    seed: int = 0,
) -> list[RequestRecord]:
    """Poisson arrivals at a server of ``slots`` that can finish ``capacity_per_s`` in all.

    The first measured request is due at 0; service times are exponential.
    """
    source = random.Random(seed)
    due_s = -warmup / rate_per_s
    free_s = [due_s] * slots
    records = []
    for index in range(warmup + requests):
        due_s += source.expovariate(rate_per_s)
        begin_s = max(due_s, heapq.heappop(free_s))
        end_s = begin_s + source.expovariate(capacity_per_s / slots)
        heapq.heappush(free_s, end_s)
        phase = MEASURED if due_s >= 0 else WARMUP
        records.append(request(due_s * 1e3, due_s * 1e3, end_s * 1e3, phase=phase, index=index))
    return records


def last_due_ms(records: Iterable[RequestRecord]) -> float:
    return max(record.scheduled_s for record in records) * 1e3
