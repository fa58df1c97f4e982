"""A sandbox of the tests' own, for real: needs root and Debian's Slurm packages."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sharing import sandbox_name
from tests.waiting import eventually
from trtllm_hpc.errors import SandboxError
from trtllm_hpc.sandbox import Node, Sandbox
from trtllm_hpc.sandbox import cluster as sandbox_cluster
from trtllm_hpc.sandbox.hosts import interface_name

pytestmark = pytest.mark.slurm

ORDINARY_USER = "nobody"


def slurm(sandbox: Sandbox, *command: str, user: str | None = None, folder: Path = Path("/")) -> str:
    """Run one of Slurm's commands on the machine, as a user would."""
    whose = ["setpriv", f"--reuid={user}", f"--regid={user_group(user)}", "--clear-groups"] if user else []
    done = subprocess.run(
        [*whose, *command],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
        env={**os.environ, **sandbox.environment()},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def user_group(user: str) -> int:
    import pwd

    return pwd.getpwnam(user).pw_gid


def traces(sandbox: Sandbox) -> list[str]:
    """Whatever of a sandbox can be found on this machine."""
    marker = f"/run/trtllm-hpc/{sandbox.name}"
    found = [str(each) for each in [Path(marker)] if each.exists()]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            seen = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if marker.encode() in seen and process.name != str(os.getpid()):
            found.append(f"process {process.name}: {seen[:200]!r}")
    links = subprocess.run(["ip", "-br", "link"], check=True, capture_output=True, text=True).stdout
    found += [line for line in links.splitlines() if line.startswith(interface_name(sandbox.name))]
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    found += [line for line in mounts if marker in line]
    named = subprocess.run(["ip", "netns"], check=True, capture_output=True, text=True).stdout
    return found + [line for line in named.splitlines() if sandbox.name in line]


@pytest.fixture
def sandbox(cluster: Sandbox) -> Sandbox:
    """The one of all tests, which no test breaks."""
    return cluster


@pytest.fixture
def other() -> Iterator[Sandbox]:
    """One more sandbox, not started, and taken down whatever happens."""
    made = Sandbox(sandbox_name("broken"))
    yield made
    made.down()
    assert traces(made) == []


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """The ordinary user's folder below /tmp, which the nodes see too."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    shutil.chown(folder, ORDINARY_USER)
    yield folder
    shutil.rmtree(folder)


def command_line(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "trtllm_hpc", "sandbox", *arguments]


# What it is ----------------------------------------------------------------------------


def test_it_is_up_with_idle_nodes(sandbox: Sandbox) -> None:
    status = sandbox.status()
    assert (status.state, status.problems) == ("up", ())
    assert all(status.daemons.values())
    nodes = slurm(sandbox, "sinfo", "--Node", "--noheader", "--partition=batch", "--format=%N %T %G")
    assert nodes.splitlines() == [f"{node.name} idle gpu:4,scratch:1000" for node in sandbox.nodes]


def test_a_second_up_does_nothing_and_another_shape_is_refused(sandbox: Sandbox) -> None:
    before = [node.pid for node in sandbox.nodes]
    assert not sandbox.up(nodes=4, gpus_per_node=4)
    with pytest.raises(SandboxError, match="another shape") as error:
        sandbox.up(nodes=1, gpus_per_node=4)
    assert error.value.hint is not None
    assert f"sandbox down --name {sandbox.name} && " in error.value.hint
    assert [node.pid for node in sandbox.nodes] == before


def test_pmix_ranks_run_on_two_hosts_with_gpus_of_their_own(sandbox: Sandbox) -> None:
    said = slurm(
        sandbox,
        *("srun", "--nodes=2", "--ntasks-per-node=2", "--gpus-per-task=1", "--mpi=pmix"),
        *("bash", "-c", 'echo "$PMIX_RANK $(hostname) $CUDA_VISIBLE_DEVICES"'),
    )
    first, second, *_ = (node.name for node in sandbox.nodes)
    ranks = sorted(said.splitlines())
    assert [line.split()[:2] for line in ranks] == [["0", first], ["1", first], ["2", second], ["3", second]]
    assert [line.split()[2] for line in ranks] == ["0", "1", "0", "1"]


def test_an_ordinary_user_submits_and_owns_the_output(sandbox: Sandbox, shared_folder: Path) -> None:
    script = 'id -un; srun --mpi=pmix hostname; echo "$SLURM_CONF"'
    slurm(
        sandbox,
        *("sbatch", "--wait", "--output=out.txt", f"--wrap={script}"),
        user=ORDINARY_USER,
        folder=shared_folder,
    )
    output = shared_folder / "out.txt"
    said = output.read_text().splitlines()
    assert said == [ORDINARY_USER, sandbox.nodes[0].name, str(sandbox.slurm_conf)]
    assert output.owner() == ORDINARY_USER


# What it leaves behind ------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("end", ["finish", "cancel", "kill"])
def test_orphans_without_an_environment_die_with_their_job(sandbox: Sandbox, end: str) -> None:
    # The job finishes well although its last program was killed: a job that ends by itself may do so unseen.
    orphan = f"(env -i setsid sleep 4242 &); sleep 60{'; true' if end == 'finish' else ''}"
    job = slurm(sandbox, "sbatch", "--parsable", "--output=/dev/null", f"--wrap={orphan}").strip()

    def running(arguments: tuple[str, ...]) -> list[int]:
        return [
            each.pid for node in sandbox.nodes for each in node.processes() if each.arguments == arguments
        ]

    assert eventually(lambda: bool(running(("sleep", "4242"))))
    if end == "cancel":
        slurm(sandbox, "scancel", job)
    else:
        for pid in running(("sleep", "60")):
            os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not running(("sleep", "4242")), 10)
    assert eventually(lambda: job not in slurm(sandbox, "squeue", "--noheader", "--format=%i"), 10)


def test_down_ends_running_jobs_and_leaves_nothing(other: Sandbox) -> None:
    other.up(nodes=1, gpus_per_node=0)
    sleeps = "--wrap=(env -i setsid sleep 4343 &); sleep 600"
    job = slurm(other, "sbatch", "--parsable", "--job-name=sleeps", "--output=/dev/null", sleeps).strip()
    node = other.nodes[0]
    assert eventually(lambda: any(each.arguments[0] == "sleep" for each in node.processes()))
    inside = [each.pid for each in node.processes()]
    own = Path(tempfile.mkdtemp(prefix=f"trt{job}_0_0_", dir="/tmp"))
    foreign = Path(tempfile.mkdtemp(prefix=f"trt{int(job) + 10**9}_0_0_", dir="/tmp"))
    assert other.down()
    assert traces(other) == []
    assert (own.exists(), foreign.exists()) == (False, True)
    foreign.rmdir()
    assert [pid for pid in inside if Path(f"/proc/{pid}").exists()] == []
    assert not other.down()


# When it breaks -------------------------------------------------------------------------


def kill(node: Node, program: str) -> None:
    for each in node.processes():
        if Path(each.arguments[0]).name == program:
            os.kill(each.pid, signal.SIGKILL)


def test_what_is_broken_is_named_and_up_says_what_to_type(other: Sandbox) -> None:
    other.up(nodes=2, gpus_per_node=0)
    kill(other.head, "mariadbd")
    kill(other.nodes[1], "slurmd")
    assert eventually(lambda: len(other.status().problems) == 2)
    status = other.status()
    assert status.state == "degraded"
    assert status.problems == ("mariadbd does not answer", f"slurmd on {other.nodes[1].name} does not answer")
    with pytest.raises(SandboxError, match="mariadbd does not answer") as error:
        other.up(nodes=2, gpus_per_node=0)
    assert error.value.hint is not None
    assert error.value.hint.startswith(f"trtllm-hpc sandbox down --name {other.name} && ")


@pytest.mark.parametrize(
    ("stage", "signum"),
    [
        ("MariaDB", signal.SIGKILL),
        pytest.param("namespaces", signal.SIGINT, marks=pytest.mark.thorough),
        pytest.param("slurmctld", signal.SIGTERM, marks=pytest.mark.thorough),
    ],
)
def test_an_up_that_is_ended_halfway_leaves_no_process(
    other: Sandbox, stage: str, signum: signal.Signals
) -> None:
    with subprocess.Popen(
        command_line("up", "--name", other.name), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as starting:
        assert starting.stderr is not None
        said = []
        for line in starting.stderr:
            said.append(line)
            if stage in line:
                break
        starting.send_signal(signum)
        said.append(starting.communicate(timeout=60)[1])
    if signum is signal.SIGKILL:
        assert eventually(lambda: other.status().state == "down", 5)
        other.down()
    else:
        assert starting.returncode == 130, said
    assert traces(other) == []


@pytest.mark.thorough
def test_a_daemon_that_cannot_start_is_told_with_its_log(
    other: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "urandom", lambda _: b"too short for a key")
    monkeypatch.setattr(sandbox_cluster, "START_TIMEOUT_S", 3.0)
    with pytest.raises(SandboxError, match=r"munged on sbx-broken-[\w-]+-head did not answer") as error:
        other.up(nodes=1, gpus_per_node=0)
    assert "Keyfile" in error.value.message
    assert traces(other) == []
