"""A sandbox with the Slurm of another Debian beside one with the machine's (`make test-trixie`).

All other tests of this folder run inside that root file system, started there by `sandbox enter`.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sharing import sandbox_name
from tests.slurm.test_sandbox import ORDINARY_USER, command_line, slurm, traces
from tests.waiting import eventually
from trtllm_hpc.errors import SandboxError
from trtllm_hpc.sandbox import Sandbox, processes

ROOT = os.environ.get("TRTLLM_HPC_TEST_ROOT", "")

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.thorough,
    pytest.mark.skipif(not ROOT, reason="TRTLLM_HPC_TEST_ROOT names no root file system"),
]


@pytest.fixture(scope="module")
def machine() -> Iterator[Sandbox]:
    made = Sandbox(sandbox_name("own"))
    made.up(2, 4)
    yield made
    made.down()
    assert traces(made) == []


@pytest.fixture(scope="module")
def other(machine: Sandbox) -> Iterator[Sandbox]:
    made = Sandbox(sandbox_name("root"))
    assert made.up(2, 4, root=ROOT)
    yield made
    made.down()
    assert traces(made) == []


def inside(sandbox: Sandbox, *command: str) -> str:
    """Run a command in the root file system, as root, for this sandbox."""
    words = ["enter", ROOT, "env", f"SLURM_CONF={sandbox.slurm_conf}", *command]
    return subprocess.run(command_line(*words), check=True, capture_output=True, text=True).stdout


def test_two_slurms_run_side_by_side(machine: Sandbox, other: Sandbox) -> None:
    ranks = ("srun", "--nodes=2", "--ntasks-per-node=2", "--gpus-per-task=1", "--mpi=pmix")
    task = ("bash", "-c", 'echo "$PMIX_RANK $(hostname) $CUDA_VISIBLE_DEVICES"')
    for sandbox, said in ((machine, slurm(machine, *ranks, *task)), (other, inside(other, *ranks, *task))):
        assert sandbox.status().state == "up"
        first, second = (node.name for node in sandbox.nodes)
        expected = [f"0 {first} 0", f"1 {first} 1", f"2 {second} 0", f"3 {second} 1"]
        assert sorted(said.splitlines()) == expected
    assert inside(other, "slurmd", "-V") != slurm(machine, "slurmd", "-V")


def test_status_names_the_root_and_up_takes_no_other(other: Sandbox) -> None:
    assert (other.status().root, other.up(2, 4, root=ROOT)) == (ROOT, False)
    with pytest.raises(SandboxError, match="is up with another shape: 2 nodes with 4 GPUs each and the root"):
        other.up(2, 4)
    shown = subprocess.run(
        command_line("status", "--name", other.name), capture_output=True, text=True, check=True
    )
    assert f"trtllm-hpc sandbox enter {shlex.quote(ROOT)}, and there" in shown.stdout
    # An ordinary user may look, but cannot ask another root's Slurm.
    whose = ("setpriv", f"--reuid={ORDINARY_USER}", "--regid=65534", "--clear-groups")
    looked = subprocess.run(
        [*whose, *command_line("status", "--name", other.name)], capture_output=True, text=True, check=False
    )
    assert re.search("slurmctld +only root can check", looked.stdout), looked.stdout + looked.stderr
    assert ": up\n" in looked.stdout and "problem" not in looked.stdout


def test_a_folder_and_the_python_of_the_machine_are_seen_by_its_jobs(other: Sandbox, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    program = (
        "import sys, mpi4py.MPI as mpi; print(mpi.COMM_WORLD.size, sys.prefix, mpi.Get_library_version())"
    )
    ranks = shlex.join(["srun", "--mpi=pmix", sys.executable, "-c", program])
    inside(other, "sbatch", "--wait", "--nodes=2", f"--output={tmp_path}/out", f"--wrap={ranks}")
    said = (tmp_path / "out").read_text()
    assert said.count(f"2 {sys.prefix} Open MPI") == 2, said


def test_down_while_a_job_runs_leaves_nothing_of_it(machine: Sandbox) -> None:
    made = Sandbox(sandbox_name("short"))
    made.up(1, 0, root=ROOT)
    inside(made, "sbatch", "--output=/dev/null", "--wrap=sleep 600")
    assert eventually(lambda: made.nodes[0].has_process("sleep"))
    assert made.down()
    assert traces(made) == []
    assert machine.status().state == "up"


def test_a_killed_maker_leaves_nothing_that_is_taken_for_whole(tmp_path: Path) -> None:
    folder = Path(f"{tmp_path}/root")
    with subprocess.Popen(command_line("root", str(folder)), stderr=subprocess.PIPE, text=True) as making:
        assert making.stderr is not None
        for line in making.stderr:
            if line.startswith("I: Extracting"):
                break
        making.send_signal(signal.SIGKILL)
        making.stderr.read()  # to the end: every process that writes there has ended
    assert not folder.exists() and folder.with_name("root.partial").exists()
    with pytest.raises(SandboxError, match="is not a root file system with"):
        Sandbox(sandbox_name("none")).up(1, 0, root=folder.with_name("root.partial"))
    assert not [each for each in processes.all_processes() if str(folder) in " ".join(each.arguments)]
    assert str(folder) not in Path("/proc/self/mounts").read_text()
