"""The one zero of all times of a measurement."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Clock:
    """Seconds since the measurement began, on the monotonic clock.

    Linux has one monotonic clock for all processes of a machine
    (clock_gettime(2)), so a copy in another process tells the same time.
    """

    zero: float = field(default_factory=time.monotonic)
    """What ``time.monotonic()`` said at the start."""
    started_at: float = field(default_factory=time.time)
    """Seconds since the epoch at the same moment; for people, never for figures."""

    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.zero
