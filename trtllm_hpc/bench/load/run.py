"""Load on a server: at times fixed beforehand, or so many requests at once."""

from __future__ import annotations

from collections.abc import Sequence

from trtllm_hpc.bench.load.clock import Clock
from trtllm_hpc.bench.load.loops import run_plan
from trtllm_hpc.bench.load.plan import ClosedPlan, Counter, OpenPlan, Plan
from trtllm_hpc.bench.load.replies import Load
from trtllm_hpc.bench.load.target import Target


def run_open(
    target: Target,
    payloads: Sequence[bytes],
    due_s: Sequence[float],
    clock: Clock,
    *,
    first_index: int = 0,
    start_s: float | None = None,
    progress: Counter | None = None,
    processes: int = 1,
) -> Load:
    """Send each payload when it is due, whatever the server does, and wait for every answer.

    A request that is late is sent at once, and its reply says so; none is dropped.

    Args:
        first_index: index in the workload of the first payload; replies carry their own.
        due_s: seconds after ``start_s``, rising.
        start_s: on ``clock``; ``None`` is as soon as there is a connection.
        processes: that share the requests, every so-manieth each.

    Raises:
        NotReady: no connection to the endpoint.
    """
    if len(payloads) != len(due_s):
        raise ValueError(f"{len(payloads)} payloads for {len(due_s)} times")
    indices = range(first_index, first_index + len(payloads))
    plan = OpenPlan(target, payloads, indices, clock, start_s, due_s)
    return _shared(plan, processes, progress) if processes > 1 else run_plan(plan, progress)


def run_closed(
    target: Target,
    payloads: Sequence[bytes],
    concurrency: int,
    clock: Clock,
    *,
    count: int | None = None,
    until_s: float | None = None,
    first_index: int = 0,
    start_s: float | None = None,
    progress: Counter | None = None,
    processes: int = 1,
) -> Load:
    """Keep ``concurrency`` requests outstanding, and wait for every answer.

    Payloads that run out come again from the first.

    Args:
        count: requests in all; ``None`` needs ``until_s``.
        first_index: index in the workload of the first payload; replies carry their own.
        until_s: nothing is sent from then on, in seconds after the start.
        start_s: on ``clock``; ``None`` is as soon as there is a connection.
        processes: that share the outstanding requests; no more than there are of these.

    Raises:
        NotReady: no connection to the endpoint.
    """
    if count is None and until_s is None:
        raise ValueError("a closed loop needs an end: count or until_s")
    indices = range(first_index, first_index + len(payloads))
    plan = ClosedPlan(target, payloads, indices, clock, start_s, concurrency, count, until_s)
    processes = min(processes, concurrency)
    return _shared(plan, processes, progress) if processes > 1 else run_plan(plan, progress)


def _shared(plan: Plan, processes: int, progress: Counter | None) -> Load:
    from trtllm_hpc.bench.load.processes import run_shared

    return run_shared(plan, processes, progress)
