"""Being called on time: a timer of the kernel that an event loop can wait for, timerfd_create(2).

asyncio's own timers wake up to a millisecond late, since they end in
``epoll_wait(2)``, which counts in whole milliseconds.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable

_ABSOLUTE = 1
_SECOND_NS = 1_000_000_000


class _Span(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Span), ("value", _Span))


class Timer:
    """Its file descriptor becomes readable at the moment that it is set to."""

    def __init__(self) -> None:
        # os.timerfd_create came with Python 3.13.
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._setting = _Setting()

    def set(self, at: float) -> None:
        """Set it to a moment of ``time.monotonic``; one that has passed comes at once."""
        value = self._setting.value
        value.seconds, value.nanoseconds = divmod(max(1, int(at * _SECOND_NS)), _SECOND_NS)
        if self._libc.timerfd_settime(self.fd, _ABSOLUTE, ctypes.byref(self._setting), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def clear(self) -> None:
        """Take note that it has come."""
        os.read(self.fd, 8)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)


class Pace:
    """Calls back at moments of ``time.monotonic``, on time to well under a millisecond."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._timer = Timer()

    def __enter__(self) -> Pace:
        asyncio.get_running_loop().add_reader(self._timer.fd, self._come)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._timer.fd)
        self._timer.close()

    def wake(self, at: float) -> None:
        """Call back then, once."""
        self._timer.set(at)

    def _come(self) -> None:
        self._timer.clear()
        self._call()
