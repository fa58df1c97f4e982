"""Faults of processes: killed, or stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from benchmarks.faults.scene import Scene
from tests.slurm.conftest import Person, user_processes
from tests.upstream.llm_api import SERVE
from tests.waiting import eventually
from trtllm_hpc.runtime.process import descendants

Injection = Callable[[Scene], AbstractContextManager[None]]
"""Injects a fault on entering, and takes it back, if it can be, on leaving."""

Find = Callable[[Scene], int]


def signalled(find: Find, number: signal.Signals) -> Injection:
    """A signal to one process."""

    @contextmanager
    def inject(scene: Scene) -> Iterator[None]:
        os.kill(_awaited(find, scene), number)
        yield

    return inject


def _awaited(find: Find, scene: Scene) -> int:
    """The process, which may be about to begin."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return find(scene)
        except AssertionError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def killed(find: Find) -> Injection:
    """``kill -9`` of one process."""
    return signalled(find, signal.SIGKILL)


def out_of_memory(rank: int) -> Injection:
    """The kernel kills a process of a rank, whose cgroup has no memory left."""

    @contextmanager
    def inject(scene: Scene) -> Iterator[None]:
        group = Path("/sys/fs/cgroup/memory/trtllm-hpc-faults")
        group.mkdir(exist_ok=True)
        (group / "memory.limit_in_bytes").write_text(str(4 * 2**20))
        assert eventually(scene.paths.rank_record("serve", rank).exists, 30)
        first = scene.supervisor(rank)
        for pid in (first, *descendants(first)):
            with suppress(ProcessLookupError):
                (group / "cgroup.procs").write_text(str(pid))
        assert eventually(lambda: "oom_kill 0" not in (group / "memory.oom_control").read_text(), 60)
        yield
        eventually(lambda: not (group / "cgroup.procs").read_text(), 10)
        group.rmdir()

    return inject


def stopped(find: Find) -> Injection:
    """SIGSTOP of one process and all its descendants; they go on at the end."""

    @contextmanager
    def inject(scene: Scene) -> Iterator[None]:
        first = _awaited(find, scene)
        pids = [first, *descendants(first)]
        for pid in pids:
            with suppress(ProcessLookupError):  # a helper of its start may have ended
                os.kill(pid, signal.SIGSTOP)
        yield
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    return inject


def stopped_alone(find: Find) -> Injection:
    """SIGSTOP of one process; it goes on at the end."""

    @contextmanager
    def inject(scene: Scene) -> Iterator[None]:
        pid = find(scene)
        os.kill(pid, signal.SIGSTOP)
        yield
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    return inject


def server(rank: int) -> Find:
    """The tritonserver of a rank."""
    return lambda scene: scene.server(rank)


def stub(rank: int, model: str) -> Find:
    """A model's process of a rank."""
    return lambda scene: scene.stub(rank, model)


def supervisor(rank: int) -> Find:
    """The runtime that started a rank's server."""
    return lambda scene: scene.supervisor(rank)


def step_daemon(rank: int) -> Find:
    """The slurmstepd above a rank."""
    return lambda scene: scene.step_daemon(rank)


def batch_script(scene: Scene) -> int:
    """The bash of the serve job's batch script."""
    found = [
        process.pid
        for process in user_processes(scene.node_of(0))
        if any("slurm_script" in argument for argument in process.arguments[:3])
    ]
    assert found
    return int(min(found))


def process(*words: str, name: str = "") -> Find:
    """A process of the run by words of its command line, and by the name of its program."""

    def find(scene: Scene) -> int:
        found = [
            one.pid
            for node in scene.site.sandbox.nodes
            for one in user_processes(node)
            if name in Path(one.arguments[0]).name and all(word in one.arguments for word in words)
        ]
        assert found, (words, name)
        return int(found[0])

    return find


def serve_step(scene: Scene) -> int:
    """The srun of the step in which the ranks run: the only one with the script of the ranks."""
    return process(str(scene.paths.script("rank")), name="srun")(scene)


def upstream_server(scene: Scene) -> int:
    """The stand-in of ``trtllm-serve``, which the site's container holds as a copy."""
    found = [
        one.pid
        for node in scene.site.sandbox.nodes
        for one in user_processes(node)
        if SERVE.name in (Path(word).name for word in one.arguments[:2])
    ]
    assert found, SERVE.name
    return int(found[0])


@contextmanager
def all_of_node(scene: Scene) -> Iterator[None]:
    """``kill -9`` of all processes of the user on the node of rank 1."""
    for one in user_processes(scene.node_of(1)):
        with suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGKILL)
    yield


def asked_gateway(scene: Scene) -> int:
    """The gateway, which the first request over OpenAI's protocol starts."""
    words = ("client", scene.paths.folder, "--protocol", "openai", "--prompt", "a", "--max-tokens", "2")
    asked = scene.person.types(*words)
    assert asked.returncode == 0, asked.stderr
    return process("gateway", "--run", str(scene.paths.folder))(scene)


@contextmanager
def sockets_removed(scene: Scene) -> Iterator[None]:
    """The server's sockets are removed from `/dev/shm`, as by somebody who frees memory."""
    node = scene.node_of(0)
    node.run(["bash", "-c", "rm -rf /dev/shm/trt*_door0_*/0"])
    yield


@contextmanager
def network_cut(scene: Scene) -> Iterator[None]:
    """Nothing comes from the node of rank 1 to that of rank 0; all else reaches both."""
    lost, node = scene.node_of(0), scene.node_of(1)
    address = node.run(["getent", "ahostsv4", lost.name]).split()[0]
    node.run(["ip", "route", "add", "blackhole", f"{address}/32"])
    try:
        yield
    finally:
        node.run(["ip", "route", "del", "blackhole", f"{address}/32"])


def companion(scene: Scene) -> int:
    """The bash of the companion's script; the srun above it names the script, too."""
    script = str(scene.paths.script("companion"))
    found = [
        one.pid
        for node in scene.site.sandbox.nodes
        for one in user_processes(node)
        if script in one.arguments and Path(one.arguments[0]).name == "bash"
    ]
    assert found
    return int(found[0])


def _set_slurmd_timeout(person: Person, old_s: int, new_s: int) -> None:
    """Change how long the controller waits for a node; 300 s is Slurm's default."""
    conf = Path(person.sandbox.slurm_conf)
    text = conf.read_text()
    assert f"SlurmdTimeout={old_s}\n" in text
    conf.write_text(text.replace(f"SlurmdTimeout={old_s}\n", f"SlurmdTimeout={new_s}\n"))
    subprocess.run(["scontrol", "reconfigure"], env={**os.environ, "SLURM_CONF": str(conf)}, check=True)


@contextmanager
def node_frozen(scene: Scene) -> Iterator[None]:
    """A whole node answers nobody, as one without power; Slurm waits 300 s for it, its default."""
    node = scene.node_of(1)
    _set_slurmd_timeout(scene.person, 15, 300)
    frozen = [process.pid for process in node.processes()]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        _set_slurmd_timeout(scene.person, 300, 15)
