"""Time in the load generator: clock, precise wake-ups, and bounds on the lateness of timestamps."""

from __future__ import annotations

import asyncio
import ctypes
import os
import selectors
import time
from array import array
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

_T = TypeVar("_T")
_TFD_TIMER_ABSTIME = 1
_SECOND_NS = 1_000_000_000
_ASLEEP_S = 30e-6
"""Wait above which the process has slept; otherwise ``epoll_wait(2)`` takes a few microseconds."""


@dataclass(frozen=True)
class Clock:
    """Seconds since the measurement began, on the monotonic clock.

    Linux has one monotonic clock for all processes of a machine (clock_gettime(2)), so a copy in another
    process shows the same time.
    """

    zero: float = field(default_factory=time.monotonic)
    """``time.monotonic()`` at the start."""
    started_at: float = field(default_factory=time.time)
    """Unix time at the start; for display only."""

    def now(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self.zero


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class KernelTimer:
    """Calls back at times of ``time.monotonic``, late by much less than a millisecond.

    The event loop watches the file descriptor of a kernel timer (timerfd_create(2)). asyncio's own timers are
    up to a millisecond late, because ``epoll_wait(2)`` counts in whole milliseconds.
    """

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._spec = _TimerSpec()
        # os.timerfd_create needs Python 3.13.
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def __enter__(self) -> KernelTimer:
        asyncio.get_running_loop().add_reader(self._fd, self._expired)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)

    def set(self, at: float) -> None:
        """Call back once at this time, or immediately if it has passed."""
        value = self._spec.value
        value.seconds, value.nanoseconds = divmod(max(1, int(at * _SECOND_NS)), _SECOND_NS)
        if self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(self._spec), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def _expired(self) -> None:
        with suppress(BlockingIOError):  # the timer has been set again since
            os.read(self._fd, 8)  # else the descriptor stays readable
        self._callback()


class StampBounds(selectors.DefaultSelector):
    """The selector of the load's event loop, which bounds the lateness of its reads' timestamps.

    When the loop wakes up, it reads all connections with data, one after another, and stamps each read. If
    the loop had slept, the data of these reads arrived after the wake-up, otherwise after the previous
    wake-up. The time from then to the last read, plus the time for which the thread waited for a core, bounds
    the lateness of all timestamps of this turn of the loop.
    """

    def __init__(self) -> None:
        super().__init__()
        self.last_read = 0.0
        """``time.monotonic()`` of the last read of this turn, set by the reader."""
        self.reads = 0
        """Number of reads in this turn, counted by the reader."""
        self._woke = self._since = time.monotonic()
        self._stalled_s = 0.0
        self._ends = array("d")
        """Time of the last read, for each turn with reads."""
        self._reads = array("l")
        """Number of reads of these turns."""
        self._bounds_s = array("d")
        """Bounds of the lateness of these turns' timestamps."""
        self._stalls_s = array("d")
        """Waits for a core before these turns."""
        try:
            self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # a kernel without scheduler statistics
            self._schedstat = -1
        self._waited_s = self._without_core_s()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait until connections are ready, and record the bounds of the previous turn."""
        if self.last_read:
            self._ends.append(self.last_read)
            self._reads.append(self.reads)
            self._bounds_s.append(self.last_read - self._since)
            self._stalls_s.append(self._stalled_s)
            self.last_read, self.reads = 0.0, 0
        begun = time.monotonic()
        ready = super().select(timeout)
        now = time.monotonic()
        waited_s, self._waited_s = self._waited_s, self._without_core_s()
        self._stalled_s = self._waited_s - waited_s
        self._since = now - self._stalled_s if now - begun > _ASLEEP_S else self._woke
        self._woke = now
        return ready

    def p99_s(self, clock: Clock, firsts_s: Sequence[float]) -> tuple[float, float] | None:
        """Return bounds of lateness and of waits for a core for 99 % of the reads; ``None`` without reads.

        Each read counts, because a delayed turn has many reads. The bound also holds for 99 % of
        ``firsts_s``, the times of the answers' first reads on the clock, because a stall in which many
        answers begin changes the times to first token although it is rare among all reads.
        """
        import numpy as np

        if not self._ends:
            return None
        bounds_s, reads = np.array(self._bounds_s), np.array(self._reads)
        turns = np.searchsorted(np.array(self._ends) - clock.zero, firsts_s).clip(max=len(bounds_s) - 1)
        samples = [np.repeat(bounds_s, reads), *([bounds_s[turns]] if firsts_s else [])]
        late_s = max(float(np.percentile(sample, 99)) for sample in samples)
        return late_s, float(np.percentile(np.repeat(np.array(self._stalls_s), reads), 99))

    def close(self) -> None:
        """Close the selector."""
        super().close()
        if self._schedstat >= 0:
            os.close(self._schedstat)

    def _without_core_s(self) -> float:
        """Return the time so far for which this thread waited for a core (Linux, sched-stats.rst)."""
        if self._schedstat < 0:
            return 0.0
        return int(os.pread(self._schedstat, 100, 0).split()[1]) * 1e-9


def run_stamped(main: Callable[[StampBounds], Coroutine[Any, Any, _T]]) -> _T:
    """Run a coroutine function in a new event loop that bounds the lateness of timestamps."""
    bounds = StampBounds()
    loop = asyncio.SelectorEventLoop(bounds)
    try:
        return loop.run_until_complete(main(bounds))
    finally:
        if tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks))
        loop.close()
