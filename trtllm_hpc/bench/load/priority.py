"""The load generator goes first where the system lets it: it needs little, but at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_POLICY, _PRIORITY = os.SCHED_RR, 1
"""The lowest of the real-time priorities: before everything ordinary, behind the system's own. A nice value
is not enough: beside busy neighbours on two cores a process of nice -10 woke up to 80 ms late, one of this
policy never more than 1 ms (Linux 6.18). Root may, and who has the limit ``rtprio`` (limits.conf(5)). The
system keeps 5 % of each core for the rest (sched(7), ``sched_rt_runtime_us``)."""


@contextmanager
def preferred() -> Iterator[bool]:
    """While open, every thread of this process goes before ordinary ones, if it may; gives whether it does.

    Every thread, since the one that sends waits for whichever holds the interpreter.
    """
    before: dict[int, tuple[int, int]] = {}
    try:
        yield _raised(before)
    finally:
        for thread, (policy, priority) in before.items():
            with suppress(ProcessLookupError):
                os.sched_setscheduler(thread, policy, os.sched_param(priority))


def _raised(before: dict[int, tuple[int, int]]) -> bool:
    """Raise every thread, noting in ``before`` how each was; whether that was allowed."""
    for folder in Path("/proc/self/task").iterdir():
        thread = int(folder.name)
        try:
            policy, priority = os.sched_getscheduler(thread), os.sched_getparam(thread).sched_priority
            os.sched_setscheduler(thread, _POLICY, os.sched_param(_PRIORITY))
        except ProcessLookupError:
            continue  # it has ended since it was listed
        except PermissionError:
            return False
        before[thread] = (policy, priority)
    return True
