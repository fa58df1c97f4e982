"""Two ranks of a test's own program, each in a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from trtllm_hpc.runtime.node import free_ports


def start_two(program: str, *arguments: object) -> list[subprocess.Popen[str]]:
    """Both ranks of a module in this folder; what they print can be read."""
    where = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    return [
        subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.{program}", *map(str, arguments)],
            env={**os.environ, **where, "OMP_NUM_THREADS": "1", "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]


def answer_of_two(program: str, *arguments: object) -> Any:
    """The JSON that rank 0 prints last, once both have ended in order."""
    ranks = start_two(program, *arguments)
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    return json.loads(outputs[0].splitlines()[-1])
