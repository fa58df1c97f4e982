"""State of the process while a load runs: garbage collection, Ctrl-C, priority and CPU time."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trtllm_hpc.bench.results import ClientUse

_POLICY, _PRIORITY = os.SCHED_RR, 1
"""The lowest real-time priority, above all ordinary processes and below the system's own. A nice value is not
enough: on two cores with busy neighbours a process of nice -10 woke up to 80 ms late, with this policy at
most 1 ms (Linux 6.18). Root may set it, and users with the limit ``rtprio`` (limits.conf(5)). The kernel
reserves 5 % of each core for other processes (sched(7), ``sched_rt_runtime_us``)."""


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause garbage collection, which would delay sends; the load creates no reference cycles."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


@contextmanager
def on_sigint(interrupt: Callable[[], None]) -> Iterator[None]:
    """Call ``interrupt`` at the first Ctrl-C instead of raising KeyboardInterrupt; a second one raises it.

    Does nothing outside the main thread, or if SIGINT is ignored.
    """
    loop = asyncio.get_running_loop()
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or previous == signal.SIG_IGN:
        yield
        return

    def handle() -> None:
        interrupt()
        restore()

    def restore() -> None:
        with suppress(RuntimeError):
            loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, previous)

    loop.add_signal_handler(signal.SIGINT, handle)
    try:
        yield
    finally:
        restore()


@contextmanager
def real_time_priority() -> Iterator[bool]:
    """Give all threads of this process real-time priority; yield False if that is not permitted.

    All threads, because the sending thread waits for the thread that holds the interpreter lock.
    """
    previous: dict[int, tuple[int, int]] = {}
    is_allowed = True
    try:
        for folder in Path("/proc/self/task").iterdir():
            thread = int(folder.name)
            try:
                policy, priority = os.sched_getscheduler(thread), os.sched_getparam(thread).sched_priority
                os.sched_setscheduler(thread, _POLICY, os.sched_param(_PRIORITY))
            except ProcessLookupError:
                continue  # the thread has ended since it was listed
            except PermissionError:
                is_allowed = False
                break
            previous[thread] = (policy, priority)
        yield is_allowed
    finally:
        for thread, (policy, priority) in previous.items():
            with suppress(ProcessLookupError):
                os.sched_setscheduler(thread, policy, os.sched_param(priority))


_Times = tuple[float, float]
"""CPU and wall time in seconds."""


class UsageMeter:
    """Measures CPU and wall time of this process since the meter's creation."""

    def __init__(self) -> None:
        self._began = self._ended = _times()
        self._all_sent: _Times | None = None

    def all_sent(self) -> None:
        """Record that all requests are sent, after which the process only waits for slow answers."""
        self._all_sent = self._all_sent or _times()

    def end(self) -> None:
        """Stop measuring."""
        self._ended = _times()

    def total(self) -> ClientUse:
        """Return CPU and wall time, and the higher share of a core: over all the time or while sending."""
        moments = (self._ended, self._all_sent or self._began)
        spans = [(cpu_s - self._began[0], wall_s - self._began[1]) for cpu_s, wall_s in moments]
        shares = [cpu_s / wall_s for cpu_s, wall_s in spans if wall_s > 0]
        return ClientUse(*spans[0], max(shares, default=0.0))


def _times() -> _Times:
    return time.process_time(), time.monotonic()
