"""Open-loop and closed-loop load in one process."""

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
"""Seconds from the connection to the first request, unless the start is set."""
_BURST = 64
"""Most late requests sent in a row before the event loop handles answers again."""
_FIRST_CONNECTIONS = 16
"""First connections of an open loop over HTTP, which opens more when necessary."""
GIVE_UP_S = 30.0
"""Seconds without a server after which the load ends; shorter restarts only fail requests."""
MIN_UNCONNECTED = 10
"""Fewest consecutive requests without a connection after which the load ends."""


@dataclass(frozen=True)
class LoadPlan:
    """Requests to send, and their target."""

    target: Target
    payloads: Sequence[bytes]
    clock: Clock
    first_index: int = field(default=0, kw_only=True)
    """Index of the first payload in the workload."""
    index_step: int = field(default=1, kw_only=True)
    """Difference between indices of successive payloads: the number of processes."""
    conversations: Sequence[Conversation] = field(default=(), kw_only=True)
    """Conversations whose first turns are the payloads."""
    until_s: float | None = field(default=None, kw_only=True)
    """End of sending in a closed loop and for later turns of conversations, in seconds after the start."""
    max_failures: int = field(default=0, kw_only=True)
    """Consecutive failures of a process after which the load ends; 0: never."""

    @cached_property
    def indices(self) -> range:
        """Indices of the payloads in the workload."""
        return range(
            self.first_index, self.first_index + len(self.payloads) * self.index_step, self.index_step
        )


@dataclass(frozen=True)
class OpenPlan(LoadPlan):
    """A load that sends each payload when it is due, whatever the server does.

    Late requests are sent immediately, never dropped, and their replies show the delay.
    """

    due_s: Sequence[float]
    """Due times in seconds after the start, in ascending order."""

    def __post_init__(self) -> None:
        if len(self.payloads) != len(self.due_s):
            raise ValueError(f"{len(self.payloads)} payloads for {len(self.due_s)} times")


@dataclass(frozen=True)
class ClosedPlan(LoadPlan):
    """A load with a fixed number of requests or conversations in flight; payloads repeat after the last."""

    concurrency: int
    count: int | None = None
    """Total number of requests; ``None`` needs ``until_s``."""

    def __post_init__(self) -> None:
        if self.count is None and self.until_s is None:
            raise ValueError("a closed loop needs an end: count or until_s")


Count = Callable[[LoadReply], object]
"""Called for each ended request; must be quick. With several processes the replies have no chunks."""
Control = Callable[[Callable[[], object]], float]
"""Called after connecting, with a function that ends the load from any thread; returns the start time."""


@dataclass(frozen=True)
class LoadResult:
    """The replies of one pass."""

    replies: list[LoadReply]
    """Replies in the order of sending, without requests that were open when the load ended early."""
    client: ClientUse
    start_s: float
    """Begin of the schedule on the clock, from which ``due_s`` of an open loop counts."""
    interrupted: bool = False
    """Whether Ctrl-C ended the load."""
    saturated_until_s: float | None = None
    """Closed loop of several processes: time at which the first process sent its last request."""
    disconnected: bool = False
    """Whether the load ended early because the server was gone; see :class:`DisconnectWatch`."""
    failures: int | None = None
    """Number of consecutive failures that ended the load; see :class:`FailureWatch`."""


class FailureWatch:
    """Notices consecutive failures of requests that were sent after the first failure.

    Requests that were already in flight do not count: when one of several instances dies, all its requests
    fail together, but the other instances still serve.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit or math.inf
        self._since_s = math.inf
        self.count = 0

    def gives_up(self, reply: LoadReply) -> bool:
        """Record an ended request, and return whether the load should end."""
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
        """Record an ended request, and return whether the load should end."""
        if reply.status == OK or not (reply.error or "").startswith(NO_CONNECTION):
            self._since_s = None
            return False
        if self._since_s is None:
            self._since_s, self._requests = reply.ended_s, 0
        self._requests += 1
        return self._requests >= MIN_UNCONNECTED and reply.ended_s - self._since_s >= GIVE_UP_S


def run_in_process(plan: LoadPlan, count: Count | None = None, control: Control | None = None) -> LoadResult:
    """Run a load in this process. Raises NotReady if the endpoint cannot be reached."""
    # Each connection is an open file, of which a shell allows only 1,024 for the sake of select(2).
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    load = (_OpenLoop if isinstance(plan, OpenPlan) else _ClosedLoop)(plan, count)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_stamped(partial(load.run, control))
    # In a notebook this thread already has an event loop, so another thread runs the load.
    with ThreadPoolExecutor(1, "load") as pool:
        result = pool.submit(run_stamped, partial(load.run, control))
        try:
            return result.result()
        except KeyboardInterrupt:
            load.end_early()
            return result.result()


class _Load(ABC):
    """Common parts of open and closed loops: sending, counting answers, ending."""

    is_closed = False
    """Whether a free slot triggers a request, instead of a due time."""

    def __init__(self, plan: LoadPlan, count: Count | None) -> None:
        self.plan = plan
        self.clock = plan.clock
        self.start_s = 0.0
        self.count = count
        self.replies: list[LoadReply] = []
        self.turns = Turns(plan.conversations, plan.target, plan.clock, self.dispatch)
        self.outstanding = 0
        """Number of requests without an answer, or of open conversations."""
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
        """End the load, if it runs; can be called from any thread."""
        if self._event_loop is not None:
            with suppress(RuntimeError):  # the load has ended
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
            set_start_s = control(self.end_early) if control else None
            with (
                gc_paused(),
                on_sigint(self._interrupt),
                KernelTimer(self.turns.on_timer) as self.turns.timer,
                KernelTimer(self.on_timer) as timer,
            ):
                self.usage = UsageMeter()
                self.start_s = self.clock.now() + _LEAD_S if set_start_s is None else set_start_s
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
        late = bounds.p99_s(self.clock, [reply.chunks[0][0] for reply in self.replies if reply.chunks])
        return LoadResult(
            replies,
            use if late is None else replace(use, stamp_bound_s=late[0], stall_s=late[1]),
            self.start_s,
            self.interrupted,
            disconnected=self.disconnected,
            failures=self.failures,
        )

    @property
    @abstractmethod
    def at_once(self) -> int:
        """Number of requests for which connections are opened before the start."""

    @abstractmethod
    def on_timer(self) -> None:
        """Send the requests that are due; called first at the start."""

    @abstractmethod
    def after(self, reply: LoadReply) -> bool:
        """React to an ended request; return False if there are no more to send."""

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
        """End the load at an error in a callback; asyncio would only log it, and the load would never end."""
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
