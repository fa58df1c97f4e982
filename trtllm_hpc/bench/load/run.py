"""Run a load, open-loop or closed-loop, in this process or in several."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from trtllm_hpc.bench.load.loops import ClosedPlan, Count, LoadPlan, LoadResult, OpenPlan, run_in_process
from trtllm_hpc.bench.load.messages import LoadReply
from trtllm_hpc.bench.results import ClientUse
from trtllm_hpc.errors import NotReady

_LEAD_S = 0.2
"""Seconds from the last connection to the first request, in which all processes learn the start."""
_REPORT_INTERVAL_S = 0.2
_READY, _COUNTED, _DONE, _NOT_READY = "ready", "counted", "done", "not ready"
_START, _STOP = "start", "stop"
_NO_RESPONSE = (0.0, b"")


def run_load(plan: LoadPlan, *, progress: Count | None = None, processes: int = 1) -> LoadResult:
    """Run a load and wait for every answer.

    Each of several processes sends every n-th request, or has a part of a closed loop's concurrency, at least
    1. Raises NotReady if the endpoint cannot be reached.
    """
    if isinstance(plan, ClosedPlan):
        processes = min(processes, plan.concurrency)
    return _run_shared(plan, processes, progress) if processes > 1 else run_in_process(plan, progress)


def _run_shared(plan: LoadPlan, processes: int, progress: Count | None) -> LoadResult:
    """Run a load in new processes that begin at the same time, and merge their results."""
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


def _share_of(plan: LoadPlan, share: int, processes: int) -> LoadPlan:
    """Return the part of one process: every n-th request."""
    every_nth: dict[str, Any] = {
        "payloads": plan.payloads[share::processes],
        "first_index": plan.first_index + share,
        "index_step": processes,
        "conversations": plan.conversations[share::processes],
    }
    if isinstance(plan, OpenPlan):
        return replace(plan, **every_nth, due_s=plan.due_s[share::processes])
    assert isinstance(plan, ClosedPlan)
    count = None if plan.count is None else len(range(share, plan.count, processes))
    slots = len(range(share, plan.concurrency, processes))
    has_few = share >= len(plan.payloads)  # fewer requests than processes
    return replace(plan, **({} if has_few else every_nth), count=count, concurrency=slots)


def _collect(plan: LoadPlan, pipes: list[Connection], progress: Count | None) -> list[LoadResult]:
    """Start the workers together, forward their counts, wait for their results; Ctrl-C ends them early."""
    results: dict[Connection, LoadResult] = {}
    ready: set[Connection] = set()
    stopped = False
    while len(results) < len(pipes):
        try:
            for pipe in wait([pipe for pipe in pipes if pipe not in results]):
                assert isinstance(pipe, Connection)
                try:
                    kind, value = pipe.recv()
                except EOFError:
                    raise RuntimeError("a process of the load generator has died") from None
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


def _send_all(pipes: list[Connection], message: tuple[str, Any]) -> None:
    for pipe in pipes:
        with suppress(OSError):
            pipe.send(message)


def _merge(plan: LoadPlan, results: list[LoadResult]) -> LoadResult:
    use = ClientUse(
        sum(result.client.cpu_s for result in results),
        max(result.client.wall_s for result in results),
        max(result.client.busiest_share for result in results),
        len(results),
        stamp_bound_s=max(result.client.stamp_bound_s for result in results),
        stall_s=max(result.client.stall_s for result in results),
    )
    last_sends_s = [
        result.saturated_until_s or max((reply.due_s for reply in result.replies), default=result.start_s)
        for result in results
    ]
    return LoadResult(
        sorted((reply for result in results for reply in result.replies), key=lambda reply: reply.sent_s),
        use,
        results[0].start_s,
        interrupted=any(result.interrupted for result in results),
        saturated_until_s=None if isinstance(plan, OpenPlan) else min(last_sends_s),
        disconnected=any(result.disconnected for result in results),
        failures=max(result.failures or 0 for result in results) or None,
    )


def _work(pipe: Connection, plan: LoadPlan) -> None:
    """Run a worker's part. The worker ignores Ctrl-C and SIGTERM, because its parent ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    counted = deque[LoadReply]()
    lock = threading.Lock()
    ended = threading.Event()

    def send(kind: str, value: Any) -> None:
        with lock:
            pipe.send((kind, value))

    def count(reply: LoadReply) -> None:
        # The progress needs only the number of the responses.
        counted.append(replace(reply, chunks=[_NO_RESPONSE] * len(reply.chunks)))

    def report_new() -> None:
        if new := [counted.popleft() for _ in range(len(counted))]:
            send(_COUNTED, new)

    def report() -> None:
        while not ended.wait(_REPORT_INTERVAL_S):
            report_new()

    def wait_for_stop(stop: Callable[[], object]) -> None:
        with suppress(EOFError, OSError):
            pipe.recv()
        stop()

    def control(stop: Callable[[], object]) -> float:
        send(_READY, None)
        start_s: float = pipe.recv()[1]
        threading.Thread(target=wait_for_stop, args=(stop,), daemon=True).start()
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
        pass  # the parent has died, so nobody needs the result
