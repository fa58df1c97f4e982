"""Open-loop and closed-loop load as it runs in one process."""

from __future__ import annotations

import asyncio
import math
import resource
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from trtllm_hpc.bench.load.messages import LoadReply, Target
from trtllm_hpc.bench.load.process import UsageMeter, gc_paused, on_sigint
from trtllm_hpc.bench.load.timing import Clock, KernelTimer, StampBounds, run_stamped
from trtllm_hpc.bench.load.turns import Conversation, Turns
from trtllm_hpc.bench.records import NO_CONNECTION, OK
from trtllm_hpc.bench.results import ClientUse

if TYPE_CHECKING:
    from trtllm_hpc.bench.load.grpc_client import GrpcClient
    from trtllm_hpc.bench.load.http_client import HttpClient

_LEAD_S = 0.05
"""From the connection to the first request, where no start is given."""
_BURST = 64
"""Late requests sent in a row before the event loop handles answers again."""
_FIRST_CONNECTIONS = 16
"""Of an open loop over HTTP, which opens more as it needs them."""
GIVE_UP_S = 30.0
"""The load ends after this time without a server: a shorter restart fails the requests meanwhile."""
MIN_UNCONNECTED = 10
"""The load ends only after this many requests in a row without a connection."""


@dataclass(frozen=True)
class LoadPlan:
    """What is sent, and to whom."""

    target: Target
    payloads: Sequence[bytes]
    clock: Clock
    first_index: int = field(default=0, kw_only=True)
    """Index in the workload of the first payload."""
    index_step: int = field(default=1, kw_only=True)
    """From the index of one payload to that of the next: with several processes their number."""
    conversations: Sequence[Conversation] = field(default=(), kw_only=True)
    """Whose first turns the payloads are."""
    until_s: float | None = field(default=None, kw_only=True)
    """Closed loop, and later turns of conversations: nothing is sent from then on, in seconds after the
    start."""
    max_failures: int = field(default=0, kw_only=True)
    """The load ends when so many requests of a process have failed in a row; 0: never."""

    @cached_property
    def indices(self) -> range:
        """Index in the workload of each payload."""
        return range(
            self.first_index, self.first_index + len(self.payloads) * self.index_step, self.index_step
        )


@dataclass(frozen=True)
class OpenPlan(LoadPlan):
    """Each payload is sent when it is due, whatever the server does.

    A late request is sent at once, and its reply shows the delay; none is dropped.
    """

    due_s: Sequence[float]
    """Seconds after the start, in ascending order."""

    def __post_init__(self) -> None:
        if len(self.payloads) != len(self.due_s):
            raise ValueError(f"{len(self.payloads)} payloads for {len(self.due_s)} times")


@dataclass(frozen=True)
class ClosedPlan(LoadPlan):
    """A fixed number of requests or conversations is outstanding; after the last the first is sent again."""

    concurrency: int
    count: int | None = None
    """Requests in all; ``None`` needs ``until_s``."""

    def __post_init__(self) -> None:
        if self.count is None and self.until_s is None:
            raise ValueError("a closed loop needs an end: count or until_s")


Count = Callable[[LoadReply], object]
"""Called for each request that has ended; must be quick. With several processes replies have no chunks."""
Control = Callable[[Callable[[], object]], float]
"""Called once connected, with a function that ends the load from any thread; returns the start time."""


@dataclass(frozen=True)
class LoadResult:
    """The replies of one pass."""

    replies: list[LoadReply]
    """In the order of sending, without those that were outstanding when the load was ended early."""
    client: ClientUse
    start_s: float
    """When the schedule began, which ``due_s`` of an open loop counts from."""
    interrupted: bool = False
    """Whether Ctrl-C ended it early."""
    saturated_until_s: float | None = None
    """Closed loop of several processes: when the first of them sent its last request; else ``None``."""
    disconnected: bool = False
    """Whether it was ended early because the server was gone; see :class:`DisconnectWatch`."""
    failures: int | None = None
    """How many requests had failed in a row when it was ended early because of that; see
    :class:`FailureWatch`."""


class FailureWatch:
    """Notices that a number of requests in a row have failed.

    Only those count that were sent after the first of them had failed. What was in flight when one of several
    servers died fails together, and says nothing about the others.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit or math.inf
        self._since_s = math.inf
        self.count = 0

    def gives_up(self, reply: LoadReply) -> bool:
        """Take note of an ended request, and return whether the load should end."""
        if reply.status == OK:
            self._since_s, self.count = math.inf, 0
            return False
        if self._since_s == math.inf:
            self._since_s = reply.ended_s
        self.count += reply.sent_s >= self._since_s
        return self.count >= self._limit


class DisconnectWatch:
    """Notices when no connection to the server has been possible for :data:`GIVE_UP_S`."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._requests = 0

    def gives_up(self, reply: LoadReply) -> bool:
        """Take note of an ended request, and return whether the load should end."""
        if reply.status == OK or not (reply.error or "").startswith(NO_CONNECTION):
            self._since_s = None
            return False
        if self._since_s is None:
            self._since_s, self._requests = reply.ended_s, 0
        self._requests += 1
        return self._requests >= MIN_UNCONNECTED and reply.ended_s - self._since_s >= GIVE_UP_S


def run_in_process(plan: LoadPlan, count: Count | None = None, control: Control | None = None) -> LoadResult:
    """Run a load in this process. Raises NotReady if there is no connection to the endpoint."""
    # Each open stream is a file, and a shell allows 1,024, for programs that use select(2).
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    load = (_OpenLoop if isinstance(plan, OpenPlan) else _ClosedLoop)(plan, count)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_stamped(partial(load.run, control))
    # A notebook's thread has an event loop already.
    with ThreadPoolExecutor(1, "load") as pool:
        result = pool.submit(run_stamped, partial(load.run, control))
        try:
            return result.result()
        except KeyboardInterrupt:
            load.end_early()
            return result.result()


class _Load(ABC):
    """What both kinds of load share: sending, counting answers, ending."""

    is_closed = False
    """Whether a request is due when a slot is free, and not at a time of its own."""

    def __init__(self, plan: LoadPlan, count: Count | None) -> None:
        self.plan = plan
        self.clock = plan.clock
        self.start_s = 0.0
        self.count = count
        self.replies: list[LoadReply] = []
        self.turns = Turns(plan.conversations, plan.target, plan.clock, self.dispatch)
        self.outstanding = 0
        """Requests without an answer yet, or conversations that are not over."""
        self.sent = 0
        self.interrupted = False
        self.disconnect_watch = DisconnectWatch()
        self.disconnected = False
        self.failure_watch = FailureWatch(plan.max_failures)
        self.failures: int | None = None
        self.error: BaseException | None = None
        self.over = asyncio.Event()
        self._event_loop: asyncio.AbstractEventLoop | None = None

    def end_early(self) -> None:
        """End the load from any thread, once it runs."""
        if self._event_loop is not None:
            with suppress(RuntimeError):  # it may be over
                self._event_loop.call_soon_threadsafe(self._interrupt)

    async def run(self, control: Control | None, bounds: StampBounds) -> LoadResult:
        loop = self._event_loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_exception)
        self.client: GrpcClient | HttpClient
        if self.plan.target.protocol == "grpc":
            from trtllm_hpc.bench.load.grpc_client import GrpcClient

            self.client = GrpcClient(self.plan.target, self.clock, self.on_end)
        else:
            from trtllm_hpc.bench.load.http_client import HttpClient

            self.client = HttpClient(self.plan.target, self.clock, self.on_end, bounds)
        try:
            await self.client.connect(self.at_once)
            given_s = control(self.end_early) if control else None
            with (
                gc_paused(),
                on_sigint(self._interrupt),
                KernelTimer(self.turns.on_timer) as self.turns.timer,
                KernelTimer(self.on_timer) as timer,
            ):
                self.usage = UsageMeter()
                self.start_s = self.clock.now() + _LEAD_S if given_s is None else given_s
                self.timer = timer
                if self.plan.until_s is not None:
                    self.turns.end_s = self.start_s + self.plan.until_s
                timer.set(self.clock.zero + self.start_s)
                await self.over.wait()
                self.usage.end()
        finally:
            self.over.set()
            await self.client.close()
        if self.error is not None:
            raise self.error
        replies = [reply for reply in self.replies if reply.ended_s >= 0]
        use = self.usage.total()
        found = bounds.p99_s(self.clock, [reply.chunks[0][0] for reply in self.replies if reply.chunks])
        return LoadResult(
            replies,
            use if found is None else replace(use, stamp_bound_s=found[0], stall_s=found[1]),
            self.start_s,
            self.interrupted,
            disconnected=self.disconnected,
            failures=self.failures,
        )

    @property
    @abstractmethod
    def at_once(self) -> int:
        """For how many requests connections are opened before the start."""

    @abstractmethod
    def on_timer(self) -> None:
        """Send what is due; called first at the start."""

    @abstractmethod
    def after(self, reply: LoadReply) -> bool:
        """React to an ended request; returns False if no more are to be sent."""

    def send(self, position: int, due_s: float) -> None:
        """Send the payload at this position."""
        self.outstanding += 1
        if self.plan.conversations:
            reply = self.turns.begin(position, due_s)
        else:
            reply = LoadReply(self.plan.indices[position], due_s, self.clock.now(), -1.0)
        reply.freed_s = due_s if self.is_closed else None
        self.dispatch(reply, self.plan.payloads[position])

    def dispatch(self, reply: LoadReply, payload: bytes) -> None:
        """Send a request."""
        self.replies.append(reply)
        self.client.send(reply, payload)

    def on_end(self, reply: LoadReply) -> None:
        if self.over.is_set():
            reply.ended_s = -1.0
            return
        if self.count is not None:
            self.count(reply)
        fails, is_gone = self.failure_watch.gives_up(reply), self.disconnect_watch.gives_up(reply)
        if fails or is_gone:
            self.disconnected = is_gone
            self.failures = self.failure_watch.count if fails else None
            self.over.set()
        elif not self.turns.goes_on(reply):
            self.outstanding -= 1
            if not self.after(reply) and not self.outstanding:
                self.over.set()

    def _interrupt(self) -> None:
        self.interrupted = True
        self.over.set()

    def _on_exception(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the load at an error in a callback; asyncio would log it and the load would wait for ever."""
        error = context.get("exception")
        if isinstance(error, BaseException) and not self.over.is_set():
            self.error = error
            self.over.set()


class _OpenLoop(_Load):
    plan: OpenPlan

    @property
    def at_once(self) -> int:
        return min(_FIRST_CONNECTIONS, len(self.plan.payloads))

    def on_timer(self) -> None:
        times = self.plan.due_s
        last = min(self.sent + _BURST, len(times))
        while self.sent < last:
            due_s = self.start_s + times[self.sent]
            if due_s > self.clock.now():
                break
            self.sent += 1
            self.send(self.sent - 1, due_s)
            self.client.flush()
        if self.sent < len(times):
            self.timer.set(self.clock.zero + self.start_s + times[self.sent])
            return
        self.usage.all_sent()
        if not self.outstanding:
            self.over.set()

    def after(self, reply: LoadReply) -> bool:
        return self.sent < len(self.plan.due_s)


class _ClosedLoop(_Load):
    plan: ClosedPlan
    is_closed = True

    @property
    def at_once(self) -> int:
        return self.plan.concurrency

    def on_timer(self) -> None:
        self.left = 2**62 if self.plan.count is None else self.plan.count
        self.end_s = float("inf") if self.plan.until_s is None else self.start_s + self.plan.until_s
        for _ in range(min(self.plan.concurrency, self.left)):
            self._send_next(self.start_s)
        self.client.flush()
        if not self.outstanding:
            self.over.set()

    def after(self, reply: LoadReply) -> bool:
        if self.left and self.clock.now() < self.end_s:
            self._send_next(max(reply.ended_s, reply.free_s))
            return True
        self.usage.all_sent()
        return False

    def _send_next(self, due_s: float) -> None:
        self.left -= 1
        self.sent += 1
        self.send((self.sent - 1) % len(self.plan.payloads), due_s)
