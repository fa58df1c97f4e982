"""Time in the load generator: its clock, and wake-ups on time."""

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
"""A wait that took longer has slept; without sleep ``epoll_wait(2)`` takes a few microseconds."""


@dataclass(frozen=True)
class Clock:
    """Seconds since the measurement began, on the monotonic clock.

    Linux has one monotonic clock for all processes of a machine
    (clock_gettime(2)), so a copy in another process shows the same time.
    """

    zero: float = field(default_factory=time.monotonic)
    """``time.monotonic()`` at the start."""
    started_at: float = field(default_factory=time.time)
    """Seconds since the epoch at the same moment; to be shown, never for figures."""

    def now(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self.zero


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class KernelTimer:
    """Calls back at moments of ``time.monotonic``, late by well under a millisecond.

    It is a timer of the kernel (timerfd_create(2)) whose file descriptor the
    event loop watches. asyncio's own timers wake up to a millisecond late,
    since they end in ``epoll_wait(2)``, which counts in whole milliseconds.
    """

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._spec = _TimerSpec()
        # os.timerfd_create came with Python 3.13.
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
        """Call back once at this moment; at once if it has passed."""
        value = self._spec.value
        value.seconds, value.nanoseconds = divmod(max(1, int(at * _SECOND_NS)), _SECOND_NS)
        if self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(self._spec), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def _expired(self) -> None:
        with suppress(BlockingIOError):  # it was set again meanwhile
            os.read(self._fd, 8)  # clears the readiness of the descriptor
        self._callback()


class StampBounds(selectors.DefaultSelector):
    """The selector of the load's event loop, which bounds how late the stamps of its reads are.

    The loop reads everything that has arrived when it wakes up, one connection after the other, and stamps
    each read. So what a read brings has arrived after the loop woke up, if it had slept, or else after it
    woke up for the turn before. From then to the last read of a turn is a bound for all reads of that turn;
    the time for which the thread was ready and had no core is added.
    """

    def __init__(self) -> None:
        super().__init__()
        self.last_read = 0.0
        """``time.monotonic()`` of the last read of this turn, which whoever reads sets."""
        self.reads = 0
        """In this turn, which whoever reads counts."""
        self._woke = self._since = time.monotonic()
        self._stalled_s = 0.0
        self._ends = array("d")
        """The last read of each turn in which something was read."""
        self._reads = array("l")
        self._bounds_s = array("d")
        """Of the stamps of these turns."""
        self._stalls_s = array("d")
        """For how long they had waited for a core."""
        try:
            self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # a kernel without these figures
            self._schedstat = -1
        self._waited_s = self._without_core_s()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for what is ready."""
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
        """Return what 99 % of the stamps are late by at most, and how long 99 % of the reads had no core.

        Stamps count and not turns: one that was held up brings many reads. ``firsts_s``, on the clock, are
        the stamps of the answers' first reads. Of these, too, 99 % keep the bound: a stall in which many
        answers began shows in the times to first token, though it is rare among all stamps. ``None``:
        nothing was read.
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
        """Return how long this thread was ready without a core so far (Linux, sched-stats.rst)."""
        if self._schedstat < 0:
            return 0.0
        return int(os.pread(self._schedstat, 100, 0).split()[1]) * 1e-9


def run_stamped(main: Callable[[StampBounds], Coroutine[Any, Any, _T]]) -> _T:
    """Run a coroutine function in an event loop of its own, with bounds of its stamps."""
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
