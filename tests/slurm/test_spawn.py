"""Whether an orchestrator's server can spawn its workers, asked of a real Slurm and a real Open MPI."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.render.cases import render_case
from tests.slurm.conftest import Person
from tests.slurm.test_backbone import one_rank
from trtllm_hpc.runtime.records import read_events

pytestmark = [pytest.mark.slurm, pytest.mark.thorough]

GOLDEN_PYTHON = "/opt/trtllm-hpc/bin/python3"


def spawn_check() -> str:
    """The lines of an orchestrator's serve script that find out what can start it."""
    script = render_case("orchestrator")["serve.sbatch"]
    begin = script.index("# The server spawns its workers")
    return script[begin : script.index("\n\n", begin)]


def test_slurm_refuses_to_spawn_and_mpirun_does_it(person: Person, engine_alone: Path) -> None:
    job = person.job("spawning", **one_rank(engine_alone))
    _, run = person.render(job)
    script = person.folder / "spawn.sh"
    lines = [
        "#!/bin/bash",
        "set -euo pipefail",
        f"run={shlex.quote(str(run.folder))}",
        'python="$1"',
        spawn_check(),
    ]
    lines = [line.replace(GOLDEN_PYTHON, '"$python"') for line in lines]
    script.write_text("\n".join([*lines, 'echo "started by $TRTLLM_HPC_LAUNCHER"', ""]))
    output = run.logs / "spawn.out"
    person.slurm(
        *("sbatch", "--wait", f"--output={output}", "--partition=batch", "--nodes=1", "--cpus-per-task=2"),
        *(script, person.bin / "python"),
    )
    said = (run.logs / "preflight_0.out").read_text()
    # MPI_ERR_SPAWN of Open MPI 4.1, MPI_ERR_UNKNOWN of 5.0.
    assert "srun does not offer MPI_Comm_spawn (" in said and "MPI_ERR_" in said
    assert "processes can be spawned (MPI_Comm_spawn) under mpirun" in said
    assert "started by mpirun" in output.read_text()
    tried = [event.data for event in read_events(run, "serve") if event.name == "spawn"]
    assert [(one["launcher"], one["works"]) for one in tried] == [("srun", False), ("mpirun", True)]
