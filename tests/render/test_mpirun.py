"""The launcher ``mpirun.sh`` on two "nodes" of this machine: real Open MPI, any host names, no Slurm."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.render.cases import plan_of
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.render.run_folder import write_run

HERE = socket.gethostname()
BOUND_S = 60

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun"),
]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the launcher as one node of a step of two; what still runs afterwards is killed."""
    job = {"name": "demo", "engine": {"tensor_parallel": 2}, "serve": {"nodes": 2}}
    profile = {"name": "bare", "gpus_per_node": 1, "mpi": "mpirun", "python": sys.executable}
    run = write_run(plan_of(job, profile, str(tmp_path / "a run")))
    started: list[Any] = []

    def node(number: int, name: str, bound_s: int = BOUND_S) -> subprocess.Popen[str]:
        # Only root can give a process a host name of its own.
        own = ["unshare", "--uts", "sh", "-c", '/bin/hostname "$0" && exec "$@"', name]
        renamed = own if os.geteuid() == 0 and name != HERE else []
        programs = tmp_path / f"node{number}"
        programs.mkdir()
        (programs / "hostname").write_text(f"#!/bin/sh\necho {name}\n")
        (programs / "hostname").chmod(0o755)
        facts = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "77",
            "SLURM_STEP_ID": "3",
            "SLURM_STEP_NUM_NODES": "2",
            "SLURM_NODEID": str(number),
            "TRTLLM_HPC_MEETING_SECONDS": str(bound_s),
        }
        says = "echo rank $SLURM_PROCID of $SLURM_NTASKS"
        command = [*renamed, "bash", str(run.scripts / "mpirun.sh"), "step", "1", "bash", "-c", says]
        errors: dict[str, Any] = {"stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, env=os.environ | facts, cwd=run.folder, **errors))
        made: subprocess.Popen[str] = started[-1]
        return made

    yield node
    for process in started:
        process.kill()
        process.wait()
        process.stderr.close()


def said(run: RunPaths) -> list[str]:
    return sorted(file.read_text() for file in run.logs.glob("step_*.out"))


@pytest.mark.parametrize(
    "names",
    [
        (HERE, "n2.cluster.example.org"),
        ("n1.cluster.example.org", "n2.cluster.example.org"),
        ("n1.here.org", "n1.elsewhere.org"),
        ("10.1.2.3", "10.1.2.4"),
    ],
)
def test_two_nodes_are_joined_whatever_the_second_is_called(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path, names: tuple[str, str]
) -> None:
    if names[0] != HERE and os.geteuid() != 0:
        pytest.skip("only root can give a process a host name of its own")
    nodes = [start(number, name) for number, name in enumerate(names)]
    ended = [(node.wait(2 * BOUND_S), node.communicate()[1]) for node in nodes]
    assert [code for code, _ in ended] == [0, 0], ended
    assert said(RunPaths(tmp_path / "a run")) == ["rank 0 of 2\n", "rank 1 of 2\n"]


@pytest.mark.parametrize(("number", "what"), [(0, "node 1 of the step to start"), (1, "mpirun's command")])
def test_a_node_whose_neighbour_never_comes_says_so_and_ends(
    start: Callable[..., subprocess.Popen[str]], number: int, what: str
) -> None:
    alone = start(number, HERE, bound_s=1)
    assert alone.wait(BOUND_S) == ExitCode.START
    _, error = alone.communicate()
    assert f"has waited 1 s for {what}" in error and "trtllm-hpc doctor --on-nodes" in error
