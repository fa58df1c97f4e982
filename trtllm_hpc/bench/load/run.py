"""Run a load: open-loop or closed-loop, in this process or shared by several."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from trtllm_hpc.bench.load.loops import ClosedPlan, Count, LoadResult, OpenPlan, Plan, run_in_process
from trtllm_hpc.bench.load.messages import Reply, Target
from trtllm_hpc.bench.load.timing import Clock
from trtllm_hpc.bench.results import ClientUse
from trtllm_hpc.errors import NotReady

_LEAD_S = 0.2
"""From the last connection to the first request: by then every process knows the start."""
_REPORT_INTERVAL_S = 0.2
_READY, _COUNTED, _DONE, _NOT_READY = "ready", "counted", "done", "not ready"
_START, _STOP = "start", "stop"


def run_open(
    target: Target,
    payloads: Sequence[bytes],
    due_s: Sequence[float],
    clock: Clock,
    *,
    first_index: int = 0,
    weights: Sequence[bytes | None] = (),
    max_failures: int = 0,
    progress: Count | None = None,
    processes: int = 1,
) -> LoadResult:
    """Send each payload when it is due, whatever the server does, and wait for every answer.

    A late request is sent at once, and its reply shows the delay; none is dropped.

    Args:
        due_s: seconds after the start, in ascending order.
        first_index: index in the workload of the first payload.
        weights: what to append to each payload, and send it again, if the server does not know its LoRA
            adapter; only over gRPC.
        max_failures: the load ends when so many requests of a process have failed in a row.
        processes: each sends every n-th request.

    Raises:
        NotReady: no connection to the endpoint.
    """
    if len(payloads) != len(due_s):
        raise ValueError(f"{len(payloads)} payloads for {len(due_s)} times")
    indices = range(first_index, first_index + len(payloads))
    plan = OpenPlan(target, payloads, indices, clock, weights, max_failures, due_s)
    return _run(plan, processes, progress)


def run_closed(
    target: Target,
    payloads: Sequence[bytes],
    concurrency: int,
    clock: Clock,
    *,
    count: int | None = None,
    until_s: float | None = None,
    first_index: int = 0,
    weights: Sequence[bytes | None] = (),
    max_failures: int = 0,
    progress: Count | None = None,
    processes: int = 1,
) -> LoadResult:
    """Keep ``concurrency`` requests outstanding, and wait for every answer.

    When the payloads run out, it starts again with the first.

    Args:
        count: requests in all; ``None`` needs ``until_s``.
        until_s: nothing is sent from then on, in seconds after the start.
        first_index: index in the workload of the first payload.
        weights, max_failures: as for :func:`run_open`.
        processes: they share the outstanding requests; at most one process for each of these.

    Raises:
        NotReady: no connection to the endpoint.
    """
    if count is None and until_s is None:
        raise ValueError("a closed loop needs an end: count or until_s")
    indices = range(first_index, first_index + len(payloads))
    limits = (concurrency, count, until_s)
    plan = ClosedPlan(target, payloads, indices, clock, weights, max_failures, *limits)
    return _run(plan, min(processes, concurrency), progress)


def _run(plan: Plan, processes: int, progress: Count | None) -> LoadResult:
    return _run_shared(plan, processes, progress) if processes > 1 else run_in_process(plan, progress)


def _run_shared(plan: Plan, processes: int, progress: Count | None) -> LoadResult:
    """Run a load in new processes, which begin at the same moment, and merge their results."""
    context = get_context("spawn")
    workers: list[Any] = []
    pipes: list[Connection] = []
    try:
        for share in range(processes):
            pipe, workers_end = context.Pipe()
            part = _share_of(plan, share, processes)
            worker = context.Process(target=_work, args=(workers_end, part), daemon=True, name="load")
            worker.start()
            workers_end.close()
            workers.append(worker)
            pipes.append(pipe)
        return _merge(plan, _collect(plan, pipes, progress))
    finally:
        for pipe in pipes:
            pipe.close()
        for worker in workers:
            worker.kill()
            worker.join()


def _share_of(plan: Plan, share: int, processes: int) -> Plan:
    """The part of one process: every n-th request."""
    part = replace(
        plan,
        payloads=plan.payloads[share::processes],
        indices=plan.indices[share::processes],
        weights=plan.weights[share::processes],
    )
    if isinstance(part, OpenPlan):
        return replace(part, due_s=part.due_s[share::processes])
    assert isinstance(part, ClosedPlan) and isinstance(plan, ClosedPlan)
    if not part.payloads:  # fewer requests than processes
        part = plan
    count = None if plan.count is None else len(range(share, plan.count, processes))
    slots = len(range(share, plan.concurrency, processes))
    return replace(part, count=count, concurrency=slots)


def _collect(plan: Plan, pipes: list[Connection], progress: Count | None) -> list[LoadResult]:
    """Start the workers together, forward their counts, wait for their results; Ctrl-C ends them early."""
    results: dict[Connection, LoadResult] = {}
    ready: set[Connection] = set()
    stopped = False
    while len(results) < len(pipes):
        try:
            for pipe in wait([pipe for pipe in pipes if pipe not in results]):
                assert isinstance(pipe, Connection)
                kind, value = _receive(pipe)
                if kind == _READY:
                    ready.add(pipe)
                    if len(ready) == len(pipes):
                        _send_all(pipes, (_START, plan.clock.now() + _LEAD_S))
                elif kind == _COUNTED and progress is not None:
                    for reply in value:
                        progress(reply)
                elif kind == _NOT_READY:
                    raise NotReady(value)
                elif kind == _DONE:
                    results[pipe] = value
        except KeyboardInterrupt:
            if stopped or len(ready) < len(pipes):
                raise
            stopped = True
            _send_all(pipes, (_STOP, None))
    return [results[pipe] for pipe in pipes]


def _receive(pipe: Connection) -> tuple[str, Any]:
    try:
        kind, value = pipe.recv()
    except EOFError:
        raise RuntimeError("a process of the load generator has died") from None
    return kind, value


def _send_all(pipes: list[Connection], message: tuple[str, Any]) -> None:
    for pipe in pipes:
        with suppress(OSError):
            pipe.send(message)


def _merge(plan: Plan, results: list[LoadResult]) -> LoadResult:
    """One result with all replies in the order of sending."""
    use = ClientUse(
        sum(result.client.cpu_s for result in results),
        max(result.client.wall_s for result in results),
        max(result.client.busiest_share for result in results),
        len(results),
    )
    last_sends_s = [max((reply.due_s for reply in it.replies), default=it.start_s) for it in results]
    return LoadResult(
        sorted((reply for result in results for reply in result.replies), key=lambda reply: reply.sent_s),
        use,
        results[0].start_s,
        interrupted=any(result.interrupted for result in results),
        saturated_until_s=None if isinstance(plan, OpenPlan) else min(last_sends_s),
        disconnected=any(result.disconnected for result in results),
        failures=sum(result.failures or 0 for result in results) or None,
    )


def _work(pipe: Connection, plan: Plan) -> None:
    """The main function of a worker. Ctrl-C and SIGTERM reach it only through its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    counted = deque[Reply]()
    lock = threading.Lock()
    ended = threading.Event()

    def send(kind: str, value: Any) -> None:
        with lock:
            pipe.send((kind, value))

    def count(reply: Reply) -> None:
        counted.append(replace(reply, chunks=[]))

    def report_new() -> None:
        if new := [counted.popleft() for _ in range(len(counted))]:
            send(_COUNTED, new)

    def report() -> None:
        while not ended.wait(_REPORT_INTERVAL_S):
            report_new()

    def control(stop: Callable[[], object]) -> float:
        send(_READY, None)
        start_s: float = pipe.recv()[1]
        threading.Thread(target=_wait_for_stop, args=(pipe, stop), daemon=True).start()
        threading.Thread(target=report, daemon=True).start()
        return start_s

    try:
        result = run_in_process(plan, count, control)
        ended.set()
        report_new()
        send(_DONE, result)
    except NotReady as error:
        send(_NOT_READY, error.message)
    except (EOFError, BrokenPipeError):
        pass  # The parent has died, so nobody needs the result.


def _wait_for_stop(pipe: Connection, stop: Callable[[], object]) -> None:
    """Stop at the parent's message, or when the parent dies."""
    with suppress(EOFError, OSError):
        pipe.recv()
    stop()
