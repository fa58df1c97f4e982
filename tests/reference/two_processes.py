"""An engine over two ranks, each in a process."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from trtllm_hpc.reference.generation import GenerationRequest
from trtllm_hpc.reference.world import RENDEZVOUS
from trtllm_hpc.runtime.node import free_ports


def meeting(folder: Path) -> str:
    """Make what instance.sh makes for the ranks of one start."""
    made = Path(tempfile.mkdtemp(prefix="meeting.", dir=folder))
    (made / "key").write_bytes(os.urandom(32))
    return str(made)


def answers_of_two(engine: Path, folder: Path, rounds: list[list[GenerationRequest]]) -> list[dict[str, Any]]:
    """What an engine over two ranks answers; each list is submitted when the one before is answered."""
    requests = folder / "requests"
    requests.write_bytes(pickle.dumps(rounds))
    where = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_ports(1)[0]),
        RENDEZVOUS: meeting(folder),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.in_process.two_engines", str(engine), str(requests)],
            env={**os.environ, **where, "OMP_NUM_THREADS": "1", "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    answers: list[dict[str, Any]] = json.loads(outputs[0].splitlines()[-1])
    return answers
