"""One part of ``doctor --on-nodes``, as its job's script calls it."""

from __future__ import annotations

import os
import time

from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.node_checks.exchange import Wanted, write_found
from trtllm_hpc.runtime.node_checks.host import look_at_host
from trtllm_hpc.runtime.node_checks.image import look_at_image, read_image
from trtllm_hpc.runtime.node_checks.steps import join_ranks, look_at_ranks

UNATTENDED_VARIABLE = "TRTLLM_HPC_UNATTENDED_SECONDS"
_UNATTENDED_S = 60.0
"""How long the command may be silent, unless the variable says otherwise; it beats every five seconds."""


def check_node(paths: RunPaths, part: str, *, is_child: bool) -> int:
    """Look at one part and write what was found; the exit code says only whether that was possible.

    As the child, do the work that may abort the process, for the parent that looks at the same part.
    """
    wanted = Wanted.read(paths.node_checks)
    assert wanted is not None, paths.node_checks
    if is_child:
        {"image": read_image, "ranks": join_ranks}[part](wanted)
    else:
        look = {"host": look_at_host, "image": look_at_image, "ranks": look_at_ranks}[part]
        write_found(paths, part, *look(paths, wanted))
    return ExitCode.OK


def wait_until_unattended(paths: RunPaths) -> None:
    """Return once the command that waits for this job has not touched its file for a while.

    Only changes of the file count, timed by this node's clock: the clocks of two machines may differ.
    """
    limit_s = float(os.environ.get(UNATTENDED_VARIABLE) or _UNATTENDED_S)
    last, changed_at = None, time.monotonic()
    while time.monotonic() - changed_at < limit_s:
        try:
            now = paths.heartbeat.stat().st_mtime_ns
        except FileNotFoundError:
            now = None
        if now != last:
            last, changed_at = now, time.monotonic()
        time.sleep(1)
