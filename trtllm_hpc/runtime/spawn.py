"""Tasks on this one machine, for the ``local`` profile: what srun is on a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from trtllm_hpc.runtime.process import adopt_orphans, kill_descendants, on_signals, start_bound

_GRACE_S = 10.0
"""From the first bad exit, or a signal, to SIGKILL for the tasks that remain."""


def spawn(command: Sequence[str], ntasks: int, output: str) -> int:
    """Run ``ntasks`` copies of a command; returns the first non-zero exit code.

    Each task gets its rank as ``TRTLLM_HPC_PROCID`` and writes to ``output``
    with ``%t`` replaced by it. A task that fails ends the others.
    """
    asked: list[str] = []
    on_signals(asked.append)
    adopt_orphans()
    try:
        tasks = [_start(command, rank, ntasks, output) for rank in range(ntasks)]
    except OSError as error:
        print(f"error: {command[0]} cannot be started: {error.strerror}.", file=sys.stderr)
        return 127
    first_bad = 0
    deadline: float | None = None
    # A list: every task must be looked at, not only those before the first that runs.
    while any([task.poll() is None for task in tasks]):
        codes = [task.returncode for task in tasks if task.returncode]
        first_bad = first_bad or next(iter(codes), 0)
        if deadline is None and (first_bad or asked):
            deadline = time.monotonic() + _GRACE_S
            for task in tasks:
                if task.poll() is None:
                    task.terminate()
        if deadline is not None and time.monotonic() > deadline:
            break
        time.sleep(0.05)
    first_bad = first_bad or next((task.returncode for task in tasks if task.returncode), 0)
    kill_descendants()
    if asked and not first_bad:
        return 143
    return first_bad if first_bad >= 0 else 128 - first_bad


def _start(command: Sequence[str], rank: int, ntasks: int, output: str) -> subprocess.Popen[bytes]:
    environment = dict(os.environ, TRTLLM_HPC_PROCID=str(rank), TRTLLM_HPC_NTASKS=str(ntasks))
    log = os.open(output.replace("%t", str(rank)), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return start_bound(command, environment, output=log)
    finally:
        os.close(log)
