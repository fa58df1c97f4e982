"""The two kinds of load as they run in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from trtllm_hpc.bench.load.absence import Absence
from trtllm_hpc.bench.load.clock import Clock
from trtllm_hpc.bench.load.conditions import Use, interruptible, quiet
from trtllm_hpc.bench.load.pace import Pace
from trtllm_hpc.bench.load.plan import Calls, ClosedPlan, Control, Counter, OpenPlan, Plan
from trtllm_hpc.bench.load.replies import Load, Reply
from trtllm_hpc.bench.load.target import Target

LEAD_S = 0.05
"""From the connection to the first request, where no start is given."""
_AT_ONCE = 64
"""Late requests sent in a row before answers are let in."""


def run_plan(plan: Plan, progress: Counter | None = None, control: Control | None = None) -> Load:
    """Run a load in this process.

    Raises:
        NotReady: no connection to the endpoint.
    """
    loop = _OpenLoop(plan, progress) if isinstance(plan, OpenPlan) else _ClosedLoop(plan, progress)
    return asyncio.run(loop.run(control))


class _Loop:
    """What both kinds of load have in common: sending, counting answers, ending."""

    def __init__(self, plan: Plan, progress: Counter | None) -> None:
        self.target = plan.target
        self.payloads = plan.payloads
        self.indices = plan.indices
        self.clock = plan.clock
        self.start_s = plan.start_s
        self.progress = progress
        self.replies: list[Reply] = []
        self.open = 0
        """Requests without an answer yet."""
        self.sent = 0
        self.interrupted = False
        self.absence = Absence()
        self.gone = False
        self.error: BaseException | None = None
        self.over = asyncio.Event()

    async def run(self, control: Control | None) -> Load:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._broken)
        self.calls = _calls(self.target, self.clock, self.ended)
        try:
            await self.calls.connect()
            if control is not None:
                self.start_s = control(lambda: loop.call_soon_threadsafe(self._interrupt))
            with quiet(), interruptible(self._interrupt), Pace(self.tick) as pace:
                self.use = Use()
                if self.start_s is None:
                    self.start_s = self.clock.now() + LEAD_S
                self.pace = pace
                self.begin()
                await self.over.wait()
                self.use.end()
        finally:
            self.over.set()
            await self.calls.close()
        if self.error is not None:
            raise self.error
        replies = [reply for reply in self.replies if reply.ended_s >= 0]
        return Load(replies, self.use.total(), self.start_s, self.interrupted, gone=self.gone)

    def begin(self) -> None:
        raise NotImplementedError

    def tick(self) -> None:
        raise NotImplementedError

    def next(self, reply: Reply) -> bool:
        """What an answer leads to; False if nothing comes after it."""
        raise NotImplementedError

    def send(self, place: int, due_s: float) -> None:
        reply = Reply(self.indices[place], due_s, self.clock.now(), -1.0)
        self.replies.append(reply)
        self.open += 1
        self.calls.send(reply, self.payloads[place])

    def ended(self, reply: Reply) -> None:
        if self.over.is_set():
            reply.ended_s = -1.0
            return
        self.open -= 1
        if self.progress is not None:
            self.progress.count(reply.ok, reply.ended_s - reply.due_s)
        if self.absence.lasts(reply):
            self.gone = True
            self.over.set()
        elif not self.next(reply) and not self.open:
            self.over.set()

    def _interrupt(self) -> None:
        self.interrupted = True
        self.over.set()

    def _broken(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An error in a callback, which would otherwise be logged while the load waits for ever."""
        error = context.get("exception")
        if isinstance(error, BaseException) and not self.over.is_set():
            self.error = error
            self.over.set()


class _OpenLoop(_Loop):
    def __init__(self, plan: OpenPlan, progress: Counter | None) -> None:
        super().__init__(plan, progress)
        self.due_s = plan.due_s

    def begin(self) -> None:
        self.tick()

    def tick(self) -> None:
        assert self.start_s is not None
        last = min(self.sent + _AT_ONCE, len(self.due_s))
        while self.sent < last:
            due_s = self.start_s + self.due_s[self.sent]
            if due_s > self.clock.now():
                break
            self.sent += 1
            self.send(self.sent - 1, due_s)
            self.calls.flush()
        if self.sent < len(self.due_s):
            self.pace.wake(self.clock.zero + self.start_s + self.due_s[self.sent])
            return
        self.use.all_sent()
        if not self.open:
            self.over.set()

    def next(self, reply: Reply) -> bool:
        return self.sent < len(self.due_s)


class _ClosedLoop(_Loop):
    def __init__(self, plan: ClosedPlan, progress: Counter | None) -> None:
        super().__init__(plan, progress)
        self.concurrency = plan.concurrency
        self.left = plan.count if plan.count is not None else 2**62
        self.until_s = plan.until_s

    def begin(self) -> None:
        assert self.start_s is not None
        self.pace.wake(self.clock.zero + self.start_s)

    def tick(self) -> None:
        assert self.start_s is not None
        self.end_s = float("inf") if self.until_s is None else self.start_s + self.until_s
        for _ in range(min(self.concurrency, self.left)):
            self._send(self.start_s)
        self.calls.flush()
        if not self.open:
            self.over.set()

    def next(self, reply: Reply) -> bool:
        if self.left and self.clock.now() < self.end_s:
            self._send(reply.ended_s)
            return True
        self.use.all_sent()
        return False

    def _send(self, due_s: float) -> None:
        self.left -= 1
        self.sent += 1
        self.send((self.sent - 1) % len(self.payloads), due_s)


def _calls(target: Target, clock: Clock, ended: Callable[[Reply], None]) -> Calls:
    if target.protocol == "http":
        from trtllm_hpc.bench.load.http_calls import HttpCalls

        return HttpCalls(target, clock, ended)
    from trtllm_hpc.bench.load.grpc_calls import GrpcCalls

    return GrpcCalls(target, clock, ended)
