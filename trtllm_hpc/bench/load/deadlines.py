"""The end of each request's time."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol


class Expiring(Protocol):
    """What may take too long."""

    done: bool

    def expire(self) -> None:
        """Its time is over."""


class Deadlines:
    """One timer for all: with the same time for each, who began first is due first."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._running: deque[tuple[float, Expiring]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, one: Expiring) -> None:
        """From now on its time runs."""
        running = self._running
        while running and running[0][1].done:
            running.popleft()
        running.append((self._loop.time() + self._timeout_s, one))
        if self._timer is None:
            self._timer = self._loop.call_at(running[0][0], self._expire)

    def close(self) -> None:
        """Expire nothing any more."""
        self._running.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self) -> None:
        self._timer = None
        running = self._running
        while running and (running[0][1].done or running[0][0] <= self._loop.time()):
            one = running.popleft()[1]
            if not one.done:
                one.expire()
        if running:
            self._timer = self._loop.call_at(running[0][0], self._expire)
