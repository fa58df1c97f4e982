"""A load shared by several processes, where one core would be the limit."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from trtllm_hpc.bench.load.plan import Counter, OpenPlan, Plan
from trtllm_hpc.bench.load.replies import Load
from trtllm_hpc.bench.summary import ClientUse
from trtllm_hpc.errors import NotReady

_LEAD_S = 0.2
"""From the last connection to the first request: by then every process knows the start."""
_REPORT_S = 0.2
_READY, _COUNTED, _DONE, _NOT_READY = "ready", "counted", "done", "not ready"
_START, _STOP = "start", "stop"

Counted = list[tuple[bool, float]]


def run_shared(plan: Plan, processes: int, progress: Counter | None) -> Load:
    """Run a load in new processes, which begin at the same moment, and merge what they bring.

    Raises:
        NotReady: no connection to the endpoint.
    """
    context = get_context("spawn")
    workers: list[Any] = []
    pipes: list[Connection] = []
    try:
        for share in range(processes):
            here, there = context.Pipe()
            part = _part(plan, share, processes)
            worker = context.Process(target=_work, args=(there, part), daemon=True, name="load")
            worker.start()
            there.close()
            workers.append(worker)
            pipes.append(here)
        return _merged(plan, _collect(plan, pipes, progress))
    finally:
        for pipe in pipes:
            pipe.close()
        for worker in workers:
            worker.kill()
            worker.join()


def _part(plan: Plan, share: int, of: int) -> Plan:
    payloads, indices = plan.payloads[share::of], plan.indices[share::of]
    if isinstance(plan, OpenPlan):
        return replace(plan, payloads=payloads, indices=indices, due_s=plan.due_s[share::of])
    if not payloads:  # fewer requests than processes
        payloads, indices = plan.payloads, plan.indices
    count = None if plan.count is None else len(range(share, plan.count, of))
    slots = len(range(share, plan.concurrency, of))
    return replace(plan, payloads=payloads, indices=indices, count=count, concurrency=slots)


def _collect(plan: Plan, pipes: list[Connection], progress: Counter | None) -> list[Load]:
    """Start the workers together, pass their counts on, and wait for their loads; Ctrl-C ends them early."""
    loads: dict[Connection, Load] = {}
    ready: set[Connection] = set()
    stopped = False
    while len(loads) < len(pipes):
        try:
            for pipe in wait([pipe for pipe in pipes if pipe not in loads]):
                assert isinstance(pipe, Connection)
                kind, value = _receive(pipe)
                if kind == _READY:
                    ready.add(pipe)
                    if len(ready) == len(pipes):
                        start_s = plan.clock.now() + _LEAD_S if plan.start_s is None else plan.start_s
                        _tell(pipes, (_START, start_s))
                elif kind == _COUNTED and progress is not None:
                    for ok, latency_s in value:
                        progress.count(ok, latency_s)
                elif kind == _NOT_READY:
                    raise NotReady(value)
                elif kind == _DONE:
                    loads[pipe] = value
        except KeyboardInterrupt:
            if stopped or len(ready) < len(pipes):
                raise
            stopped = True
            _tell(pipes, (_STOP, None))
    return [loads[pipe] for pipe in pipes]


def _receive(pipe: Connection) -> tuple[str, Any]:
    try:
        kind, value = pipe.recv()
    except EOFError:
        raise RuntimeError("a process of the load generator has died") from None
    return kind, value


def _tell(pipes: list[Connection], message: tuple[str, Any]) -> None:
    for pipe in pipes:
        with suppress(OSError):
            pipe.send(message)


def _merged(plan: Plan, loads: list[Load]) -> Load:
    """One load of all replies, in the order of sending."""
    replies = sorted((reply for load in loads for reply in load.replies), key=lambda reply: reply.sent_s)
    use = ClientUse(
        sum(load.client.cpu_s for load in loads),
        max(load.client.wall_s for load in loads),
        max(load.client.busiest_share for load in loads),
        len(loads),
    )
    last_sends_s = [max([reply.due_s for reply in load.replies], default=load.start_s) for load in loads]
    full_until_s = None if isinstance(plan, OpenPlan) else min(last_sends_s)
    interrupted, gone = (any(getattr(load, end) for load in loads) for end in ("interrupted", "gone"))
    return Load(replies, use, loads[0].start_s, interrupted, full_until_s, gone)


class _Counts:
    """What a worker has counted and not yet told."""

    def __init__(self) -> None:
        self._new: Counted = []

    def count(self, ok: bool, latency_s: float) -> None:
        self._new.append((ok, latency_s))

    def take(self) -> Counted:
        taken, self._new = self._new, []
        return taken


def _work(pipe: Connection, plan: Plan) -> None:
    """A worker's life. Ctrl-C and SIGTERM reach it through its parent alone."""
    from trtllm_hpc.bench.load.loops import run_plan

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    counts = _Counts()
    lock = threading.Lock()
    ended = threading.Event()

    def tell(kind: str, value: Any) -> None:
        with lock:
            pipe.send((kind, value))

    def report() -> None:
        while not ended.wait(_REPORT_S):
            if new := counts.take():
                tell(_COUNTED, new)

    def control(stop: Callable[[], object]) -> float:
        tell(_READY, None)
        start_s: float = pipe.recv()[1]
        threading.Thread(target=_listen, args=(pipe, stop), daemon=True).start()
        threading.Thread(target=report, daemon=True).start()
        return start_s

    try:
        load = run_plan(plan, counts, control)
        ended.set()
        tell(_COUNTED, counts.take())
        tell(_DONE, load)
    except NotReady as error:
        tell(_NOT_READY, error.message)
    except (EOFError, BrokenPipeError):
        pass  # The parent is gone, and with it whoever wanted to know.


def _listen(pipe: Connection, stop: Callable[[], object]) -> None:
    """Wait for the word to stop, or for the parent's end, which means the same."""
    with suppress(EOFError, OSError):
        pipe.recv()
    with suppress(RuntimeError):  # the loop may be over
        stop()
