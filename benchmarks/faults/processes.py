"""Faults of processes: killed, stopped or out of memory."""

from __future__ import annotations

import os
import re
import signal as signals
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.faults.scene import Scene, injection
from tests.slurm.conftest import user_processes
from tests.waiting import eventually
from trtllm_hpc.runtime.process import descendants


def send(pids: Sequence[int], number: signals.Signals) -> None:
    """Send a signal to processes; processes that have ended are skipped."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    """Stop processes with SIGSTOP, and continue them at the end."""
    send(pids, signals.SIGSTOP)
    try:
        yield
    finally:
        send(pids, signals.SIGCONT)


@injection
def signal(scene: Scene, name: str, *target: str) -> Iterator[None]:
    """Send a signal to a process."""
    os.kill(scene.find(*target), signals.Signals[f"SIG{name}"])
    yield


@injection
def stop(scene: Scene, *target: str) -> Iterator[None]:
    """Stop a process and its descendants with SIGSTOP."""
    first = scene.find(*target)
    with stopped([first, *descendants(first)]):
        yield


@injection
def stop_alone(scene: Scene, *target: str) -> Iterator[None]:
    """Stop a single process with SIGSTOP."""
    with stopped([scene.find(*target)]):
        yield


def _set_slurmd_timeout(scene: Scene, old_s: int, new_s: int) -> None:
    """Change how many seconds the controller waits for a node that does not answer."""
    conf = Path(scene.person.sandbox.slurm_conf)
    text = conf.read_text()
    assert f"SlurmdTimeout={old_s}\n" in text
    conf.write_text(text.replace(f"SlurmdTimeout={old_s}\n", f"SlurmdTimeout={new_s}\n"))
    subprocess.run(["scontrol", "reconfigure"], env={**os.environ, "SLURM_CONF": str(conf)}, check=True)


@injection
def stop_node(scene: Scene, rank: str) -> Iterator[None]:
    """Stop every process of a rank's node, like a power failure; Slurm waits 300 s for it by default."""
    _set_slurmd_timeout(scene, 15, 300)
    try:
        with stopped([process.pid for process in scene.node_of(int(rank)).processes()]):
            yield
    finally:
        _set_slurmd_timeout(scene, 300, 15)


@injection
def kill_node(scene: Scene, rank: str) -> Iterator[None]:
    """Kill all processes of the user on the node of a rank with SIGKILL."""
    send([process.pid for process in user_processes(scene.node_of(int(rank)))], signals.SIGKILL)
    yield


@injection
def kill_step_daemon(scene: Scene, rank: str) -> Iterator[None]:
    """Kill the slurmstepd of a rank with SIGKILL."""
    node, pid = scene.node_of(int(rank)), scene.find("rank", f"--rank={rank}")
    daemons = {each.pid for each in node.processes() if each.arguments[0].startswith("slurmstepd")}
    while pid not in daemons:
        status = Path(f"/proc/{pid}/status").read_text()
        pid = int(re.findall(r"^PPid:\s+(\d+)", status, re.MULTILINE)[0])
        assert pid > 1
    os.kill(pid, signals.SIGKILL)
    yield


@injection
def limit_memory(scene: Scene, rank: str) -> Iterator[None]:
    """Limit the memory of a rank's cgroup, so that the kernel kills a process of the rank."""
    group = Path("/sys/fs/cgroup/memory/trtllm-hpc-faults")
    group.mkdir(exist_ok=True)
    (group / "memory.limit_in_bytes").write_text(str(32 * 2**20))
    # Before the rank starts its server: memory that a process already has is not charged to its new cgroup.
    first = scene.find(f"node={rank}", "rank", f"--rank={rank}")
    for pid in (first, *descendants(first)):
        with suppress(ProcessLookupError):
            (group / "cgroup.procs").write_text(str(pid))
    assert eventually(lambda: "oom_kill 0" not in (group / "memory.oom_control").read_text(), 60)
    yield
    eventually(lambda: not (group / "cgroup.procs").read_text(), 10)
    group.rmdir()


@injection
def ask_openai(scene: Scene) -> Iterator[None]:
    """Send a first request over the OpenAI protocol, which starts the gateway."""
    words = ("client", scene.paths.folder, "--protocol", "openai", "--prompt", "a", "--max-tokens", "2")
    answered = scene.person.types(*words)
    assert answered.returncode == 0, answered.stderr
    yield


@injection
def cancel_later(scene: Scene) -> Iterator[None]:
    """Cancel the run at the end."""
    yield
    scene.person.types("cancel", scene.paths.folder)
