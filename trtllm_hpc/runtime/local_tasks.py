"""Start tasks on this one machine, as srun does on a cluster; for the ``local`` profile."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from trtllm_hpc.runtime.process import adopt_orphans, kill_descendants, on_signals, start_bound

_GRACE_S = 10.0
"""From the first failure, or a signal, to SIGKILL for the remaining tasks."""


def run_tasks(command: Sequence[str], ntasks: int, output: str) -> int:
    """Run ``ntasks`` copies of a command; returns the first non-zero exit code.

    Each task gets its rank as ``TRTLLM_HPC_PROCID``, which replaces ``%t`` in ``output``, its log. A task
    that fails ends the others.
    """
    signals: list[str] = []
    on_signals(signals.append)
    adopt_orphans()
    try:
        tasks = []
        for rank in range(ntasks):
            environment = dict(os.environ, TRTLLM_HPC_PROCID=str(rank), TRTLLM_HPC_NTASKS=str(ntasks))
            tasks.append(start_bound(command, environment, Path(output.replace("%t", str(rank)))))
    except OSError as error:
        print(f"error: {command[0]} cannot be started: {error.strerror}.", file=sys.stderr)
        return 127
    failure = 0
    deadline: float | None = None
    # A list and not a generator: poll() must be called for every task.
    parent = os.getppid()
    while any([task.poll() is None for task in tasks]):
        if os.getppid() != parent:
            signals.append("SIGTERM")  # who started this was killed
        codes = [task.returncode for task in tasks if task.returncode]
        failure = failure or next(iter(codes), 0)
        if deadline is None and (failure or signals):
            deadline = time.monotonic() + _GRACE_S
            for task in tasks:
                if task.poll() is None:
                    task.terminate()
        if deadline is not None and time.monotonic() > deadline:
            break
        time.sleep(0.05)
    failure = failure or next((task.returncode for task in tasks if task.returncode), 0)
    kill_descendants()
    if signals and not failure:
        return 143
    return failure if failure >= 0 else 128 - failure
