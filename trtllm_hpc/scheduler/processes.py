"""Processes on this machine: knowing one again, and ending a group of them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from trtllm_hpc.runtime.process import start_ticks

_POLL_S = 0.1
_STOP_GRACE_S = 20.0


def is_same_process(pid: int, started: int | None) -> bool:
    """Whether ``pid`` still is the process that started then."""
    return started is not None and start_ticks(pid) == started


def end_group(group: int) -> None:
    """End a process group: SIGTERM, and after a grace SIGKILL."""
    if _signal_group(group, signal.SIGTERM):
        deadline = time.monotonic() + _STOP_GRACE_S
        while _is_alive(group) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        _signal_group(group, signal.SIGKILL)


def _signal_group(group: int, number: signal.Signals) -> bool:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _is_alive(group: int) -> bool:
    """Whether a group has a process that is not just waiting to be collected."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, of = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:3]
            except (OSError, ValueError):
                continue
            if int(of) == group and state != "Z":
                return True
    return False
