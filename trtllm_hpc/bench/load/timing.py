"""Time in the load generator: its clock, and wake-ups on time."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

_TFD_TIMER_ABSTIME = 1
_SECOND_NS = 1_000_000_000


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
