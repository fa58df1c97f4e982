"""Programs for which MPI starts alone, though a step of Slurm without PMIx runs them."""

from __future__ import annotations

import sys

import pytest

from tests.runtime.conftest import Runtime
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.runtime.launched_server import host_variables

IN_A_STEP = {"SLURM_JOBID": "1", "SLURM_NODELIST": "node1", "SLURM_STEP_ID": "0"}


def test_mpi_starts_in_a_step_that_has_no_pmix(runtime: Runtime) -> None:
    """Open MPI 4.1 aborts where it finds Slurm's variables and no PMIx ("direct launched using srun")."""
    program = "from mpi4py.MPI import COMM_WORLD; print('ranks:', COMM_WORLD.size)"
    done = runtime("alone", sys.executable, "-c", program, **IN_A_STEP)
    assert (done.returncode, done.stdout) == (0, "ranks: 1\n"), done.stderr


def test_what_does_not_name_a_world_reaches_the_program(runtime: Runtime) -> None:
    world = {**IN_A_STEP, "PMIX_RANK": "3", "PMI_RANK": "3", "OMPI_COMM_WORLD_RANK": "3"}
    done = runtime("alone", "env", TRTLLM_HPC_JOB_ID="7", UCX_TLS="tcp", **world)
    found = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert found["TRTLLM_HPC_JOB_ID"] == "7" and found["UCX_TLS"] == "tcp"
    assert world.keys().isdisjoint(found)


def test_a_program_that_the_image_lacks_is_named(runtime: Runtime) -> None:
    done = runtime("alone", "trtllm-serve-of-nobody", "disaggregated")
    assert done.returncode == ExitCode.START
    assert done.stderr.startswith("error: trtllm-serve-of-nobody cannot be started on ")


LONG = "node-with-a-long-name-0123.cluster.example"


@pytest.mark.parametrize(
    ("host", "environment", "renamed"),
    [
        ("node1", {}, False),
        ("n" * 29, {}, False),
        ("n" * 30, {}, True),
        (LONG, {"PMIX_HOSTNAME": "mine"}, False),
        (LONG, {"PMIX_NAMESPACE": "slurm.pmix.7.0"}, False),  # Slurm's own PMIx has named the node
    ],
)
def test_a_long_name_of_a_node_is_short_for_open_mpi_5(
    host: str, environment: dict[str, str], renamed: bool
) -> None:
    found = host_variables(environment, host)
    assert list(found) == (["PMIX_HOSTNAME"] if renamed else [])
    assert all(len(name) <= 29 for name in found.values())


def test_nodes_keep_different_names() -> None:
    assert host_variables({}, LONG) != host_variables({}, LONG.replace("0123", "0124"))
