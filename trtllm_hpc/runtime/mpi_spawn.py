"""Whether a process of a step can start others by MPI (``MPI_Comm_spawn``), as an orchestrator's server does.

Slurm's PMIx refuses it in most versions, and only when it is tried. Open MPI's own launcher offers it.
"""

from __future__ import annotations

import subprocess
import sys

from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.process import captured
from trtllm_hpc.runtime.records import add_event

TIMEOUT_S = 60.0
"""An MPI that can spawn needs a second or two; one that waits for a missing daemon waits for ever."""

_CHILD = "from mpi4py import MPI; p = MPI.Comm.Get_parent(); p.Barrier(); p.Disconnect()"
_PARENT = f"""
import sys
from mpi4py import MPI
spawned = MPI.COMM_SELF.Spawn(sys.executable, args=["-c", {_CHILD!r}], maxprocs=1)
spawned.Barrier()
spawned.Disconnect()
"""


def check_spawn(paths: RunPaths, launcher: str, *, is_last: bool) -> int:
    """Spawn one process that does nothing, and report whether that works; returns 0, or START.

    In a process of its own: an MPI that cannot may end its process, or wait for ever. ``launcher`` (``srun``
    or ``mpirun``) started this process; with ``is_last`` no other is tried.
    """
    reason = _obstacle()
    add_event(paths, "serve", "spawn", launcher=launcher, works=reason is None, obstacle=reason)
    if reason is None:
        print(f"preflight: processes can be spawned (MPI_Comm_spawn) under {launcher}", flush=True)
        return ExitCode.OK
    what = f"{launcher} does not offer MPI_Comm_spawn ({reason})"
    if is_last:
        hint = "set serve.mode to leader, or take an image with Open MPI 4.1"
        print(f"error: preflight: workers cannot be spawned: {what}; {hint}", file=sys.stderr, flush=True)
    else:
        print(f"preflight: {what}; trying mpirun", flush=True)
    return ExitCode.START


def _obstacle() -> str | None:
    """Return why nothing could be spawned; ``None`` if it could."""
    try:
        done = captured([sys.executable, "-c", _PARENT], TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"nothing had happened after {TIMEOUT_S:.0f} s"
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    named = [line for line in lines if "MPI_ERR" in line or "Error:" in line]
    return (named or lines or [f"exit code {done.returncode}"])[-1]
