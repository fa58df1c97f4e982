"""Time that a test has in its hands."""

from __future__ import annotations

from collections.abc import Callable


class Clock:
    """A clock that only sleeping moves; things happen at their seconds."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._due: list[tuple[float, Callable[[], None]]] = []

    def at(self, second: float, happen: Callable[[], None]) -> None:
        self._due.append((1000.0 + second, happen))

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < 1000.0 + 100_000, "followed for more than a day"
        due = [event for event in self._due if event[0] <= self.now]
        self._due = [event for event in self._due if event[0] > self.now]
        for _, happen in due:
            happen()
