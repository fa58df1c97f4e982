"""The commands of one step, as a child that leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from trtllm_hpc.runtime.process import start_bound

_TICK_S = 0.1
_GRACE_S = 5.0
"""From SIGTERM to SIGKILL; Slurm itself gives 30 s in all, unless the site says less."""


def run_child(command: Sequence[str], environment: Mapping[str, str], stop: Callable[[], bool]) -> int:
    """Run a command to its end, in a process group of its own.

    Args:
        stop: looked at all the time; when it says so, the whole group is ended.

    Returns:
        The exit code; for a signal 128 and its number, as in the shell.
    """
    child = start_bound(command, environment, session=True)
    kill_at: float | None = None
    try:
        while child.poll() is None:
            if kill_at is None and stop():
                kill_at = time.monotonic() + _GRACE_S
                _signal(child, signal.SIGTERM)
            if kill_at is not None and time.monotonic() > kill_at:
                _signal(child, signal.SIGKILL)
            time.sleep(_TICK_S)
    finally:
        # What the command left running must not write into an output that is being counted.
        _signal(child, signal.SIGKILL)
        child.wait()
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(child.pid, number)
    except (ProcessLookupError, PermissionError):
        return
