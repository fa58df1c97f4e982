"""The load generator goes first where the system lets it: it needs little, but at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_NICE = -10
"""Root may; others need a limit of their own (``nice`` in limits.conf(5)). A server on the same cores then
gives way to a client that wakes for some microseconds, and no request is late for want of a core."""


@contextmanager
def preferred() -> Iterator[int]:
    """While open, this process has that nice value if it may; gives the one that it has."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, min(before, _NICE))
    try:
        yield os.getpriority(os.PRIO_PROCESS, 0)
    finally:
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, before)
