"""The load generator goes first where the system lets it: it needs little, but at once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_NICE = -10
"""Root may; others need a limit of their own (``nice`` in limits.conf(5)). A server on the same cores then
gives way to a client that wakes for some microseconds, and no request is late for want of a core."""
_AUTOGROUP = Path("/proc/self/autogroup")
"""Where Linux groups the processes of a session, a nice value counts within the group only, and the group has
one of its own (sched(7), "The autogroup feature"). Slurm gives each task a session."""


@contextmanager
def preferred() -> Iterator[int]:
    """While open, this process and its session have that nice value if they may; gives the one of the process."""
    before, group = os.getpriority(os.PRIO_PROCESS, 0), _group()
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, min(before, _NICE))
        _set_group(group, _NICE)
    try:
        yield os.getpriority(os.PRIO_PROCESS, 0)
    finally:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, before)
            _set_group(group, group)


def _group() -> int | None:
    """The session's nice value; ``None`` where there are no such groups."""
    try:
        found = re.search(r"nice (-?\d+)", _AUTOGROUP.read_text())
    except OSError:
        return None
    return int(found[1]) if found else None


def _set_group(now: int | None, nice: int | None) -> None:
    if now is not None:
        _AUTOGROUP.write_text(str(nice))
