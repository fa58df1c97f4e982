"""Faults of files, file systems, ports and clocks."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.faults.kill import Injection
from benchmarks.faults.scene import Scene
from tests.slurm.conftest import USER, user_processes
from tests.waiting import eventually
from trtllm_hpc.runtime.records import RankRecord
from trtllm_hpc.sandbox import Node

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
"""Debian package libfaketime."""

_LISTEN = """import socket, sys, time
s = socket.socket()
s.bind(("", int(sys.argv[1])))
s.listen()
time.sleep(300)"""


@contextmanager
def small_runs(scene: Scene) -> Iterator[None]:
    """The folder of runs is a small file system."""
    scene.runs = scene.site.small
    scene.words += ["--runs", scene.runs]
    try:
        yield
    finally:
        for file in scene.runs.iterdir():
            shutil.rmtree(file) if file.is_dir() else file.unlink()


@contextmanager
def runs_full(scene: Scene) -> Iterator[None]:
    """Not a byte is left in the folder of runs."""
    filler = scene.runs / "filler"
    with filler.open("wb") as file:
        try:
            while True:
                os.write(file.fileno(), bytes(4096))
        except OSError:
            pass
    yield
    filler.unlink()


@contextmanager
def shared_memory_full(scene: Scene) -> Iterator[None]:
    """/dev/shm of both nodes has room for 64 KiB."""
    nodes = scene.site.sandbox.nodes
    for node in nodes:
        node.run(["mount", "-o", "remount,size=64k", "/dev/shm"])
    try:
        yield
    finally:
        for node in nodes:
            node.run(["mount", "-o", "remount,size=4g", "/dev/shm"])


@contextmanager
def shared_memory_filled(scene: Scene) -> Iterator[None]:
    """Another user's file fills what is left of /dev/shm while the server runs."""
    node = scene.node_of(0)
    node.run(["bash", "-c", "cat /dev/zero >/dev/shm/filler 2>/dev/null || true"], timeout_s=60)
    yield
    node.run(["rm", "-f", "/dev/shm/filler"])


@contextmanager
def open_ports(scene: Scene) -> Iterator[None]:
    """The server listens itself, without a door before it."""
    scene.words += ["--set", "serve.door=none"]
    yield


def takes_port(option: str) -> Injection:
    """Another program listens on a port before the leader's server does."""

    @contextmanager
    def inject(scene: Scene) -> Iterator[None]:
        assert eventually(scene.paths.rank_record("serve", 0).exists, 30)
        _take_port(scene, scene.node_of(0), re.compile(rf"--{option}=(\d+)"))
        yield
        for one in scene.node_of(0).processes():
            if _LISTEN in one.arguments:
                os.kill(one.pid, 9)

    return inject


def _take_port(scene: Scene, node: Node, option: re.Pattern[str]) -> None:

    def chosen() -> str | None:
        arguments = [argument for one in user_processes(node) for argument in one.arguments]
        ports = [found[1] for argument in arguments if (found := option.fullmatch(argument))]
        return ports[0] if ports else None

    port = eventually(chosen, 30)
    assert port, [one.arguments for one in user_processes(node)]
    output = scene.person.folder / "listener.out"
    node.start_daemon(["python3", "-c", _LISTEN, port], output, {"PATH": os.environ["PATH"]})
    eventually(lambda: f":{int(port):04X} 00000000:0000 0A" in node.run(["cat", "/proc/net/tcp"]), 5)


@contextmanager
def run_folder_gone(scene: Scene) -> Iterator[None]:
    """`rm -rf`, as its owner types it."""
    folder = scene.paths.folder
    assert eventually(
        lambda: scene.person.run("rm", "-rf", folder).returncode == 0 and not folder.exists(), 20
    )
    yield


@contextmanager
def run_folder_unwritable(scene: Scene) -> Iterator[None]:
    """Nothing new can be written to the run folder and the folders in it."""
    folder = scene.paths.folder
    scene.person.run("chmod", "-R", "u-w", folder)
    try:
        yield
    finally:
        scene.person.run("chmod", "-R", "u+w", folder)


@contextmanager
def plan_removed(scene: Scene) -> Iterator[None]:
    """`plan.json` is removed; the run is shown and cancelled all the same."""
    scene.paths.plan.unlink()
    yield
    scene.person.types("cancel", scene.paths.folder)


@contextmanager
def runs_hidden(scene: Scene) -> Iterator[None]:
    """The nodes have something else where the folder of runs is on the login node."""
    scene.runs.mkdir()
    shutil.chown(scene.runs, USER.pw_uid, USER.pw_gid)
    nodes = scene.site.sandbox.nodes
    for node in nodes:
        node.run(["mount", "-t", "tmpfs", "hidden", str(scene.runs)])
    try:
        yield
    finally:
        for node in nodes:
            node.run(["umount", "--lazy", str(scene.runs)])


def without_last_byte(content: bytes) -> bytes:
    """Return all but the last byte."""
    return content[:-1]


def without_header(content: bytes) -> bytes:
    """Return garbage where the header of a safetensors file is."""
    return content[:8] + os.urandom(64) + content[72:]


def half(content: bytes) -> bytes:
    """Return the first half."""
    return content[: len(content) // 2]


def engine_changed(name: str, change: Callable[[bytes], bytes]) -> Injection:
    """A file of the engine has another content, before the submission."""

    @contextmanager
    def inject(scene: Scene) -> Iterator[None]:
        with own_engine(scene):
            file = next(Path(scene.sections["engine"]["directory"]).rglob(name))
            file.write_bytes(change(file.read_bytes()))
            scene.notes.append(f"the file is {file.name}")
            yield

    return inject


def tokenizer(change: Callable[[bytes], bytes] | None) -> Injection:
    """The tokenizer of the run's own engine has another content, or is gone."""

    @contextmanager
    def inject(scene: Scene) -> Iterator[None]:
        file = Path(scene.sections["engine"]["directory"]) / "tokenizer" / "tokenizer.json"
        if change is None:
            file.unlink()
        else:
            file.write_bytes(change(file.read_bytes()))
        yield

    return inject


@contextmanager
def model_closed(scene: Scene) -> Iterator[None]:
    """The user may not read the weights of the model."""
    for file in (scene.person.folder / "model").glob("*.safetensors"):
        file.chmod(0)
    yield


@contextmanager
def pbtxt_damaged(scene: Scene) -> Iterator[None]:
    """The configuration of one model is cut in half once the run is submitted."""
    file = scene.paths.repository / "tensorrt_llm" / "config.pbtxt"
    file.write_bytes(half(file.read_bytes()))
    yield


@contextmanager
def frozen(scene: Scene) -> Iterator[None]:
    """Whoever writes to the file system of the runs waits, as for a server that hangs; for 70 s at most."""
    thaw = ["fsfreeze", "--unfreeze", str(scene.site.small)]
    subprocess.run(["fsfreeze", "--freeze", scene.site.small], check=True)
    # Not by this process: it may have to wait, too.
    later = subprocess.Popen(["bash", "-c", f"sleep 70; {shlex.join(thaw)}"], stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        later.kill()
        subprocess.run(thaw, check=False, stderr=subprocess.DEVNULL)


@contextmanager
def long_log_and_kill(scene: Scene) -> Iterator[None]:
    """The log of the leader is long when its server is killed."""
    line = b"E0101 00:00:00.000000 1 server.cc:1] error: request 4711 failed: an error occurred\n"
    with scene.paths.rank_log("serve", 0).open("ab") as log:
        for _ in range(400):
            log.write(line * (2**20 // len(line)))
    os.kill(scene.server(0), 9)
    yield


@contextmanager
def engine_gone(scene: Scene) -> Iterator[None]:
    """The engine's folder is moved away while the ranks load it."""
    copy = Path(scene.sections["engine"]["directory"])
    copy.rename(copy.with_name("engine-moved"))
    yield


@contextmanager
def engine_hidden(scene: Scene) -> Iterator[None]:
    """Rank 1's node has an empty folder where the engine is."""
    node, folder = scene.site.sandbox.nodes[1], scene.sections["engine"]["directory"]
    node.run(["mount", "-t", "tmpfs", "hidden", folder])
    try:
        yield
    finally:
        node.run(["umount", "--lazy", folder])


@contextmanager
def own_engine(scene: Scene) -> Iterator[None]:
    """The run has a copy of the engine for itself."""
    copy = scene.person.folder / "engine"
    shutil.copytree(Path(scene.sections["engine"]["directory"]), copy)
    scene.sections["engine"]["directory"] = str(copy)
    yield


@contextmanager
def own_model(scene: Scene) -> Iterator[None]:
    """The job file names a model's folder that is there at the submission."""
    from trtllm_hpc.reference import synthetic  # PyTorch takes seconds to import

    folder = scene.person.folder / "model"
    shutil.copytree(next(scene.site.engines[1].rglob("tokenizer")), folder)
    synthetic.make_model(seed=0, dtype="float32", max_seq_len=512).save_pretrained(folder)
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)  # transformers writes 0600, and the job's user is another one
    scene.sections["engine"]["directory"] = None
    scene.sections["model"] = {"path": str(folder)}
    yield


@contextmanager
def model_gone(scene: Scene) -> Iterator[None]:
    """Its folder is removed once the job is submitted."""
    shutil.rmtree(scene.person.folder / "model", ignore_errors=True)
    yield


@contextmanager
def second_build(scene: Scene) -> Iterator[None]:
    """The same job is submitted once more, and builds the same engine; both must end well."""
    words = (
        "trtllm-hpc",
        "submit",
        scene.job_file,
        "--cluster",
        scene.person.profile,
        "--wait",
        *scene.words,
    )
    other = scene.person.command(*words)
    yield
    _, errors = other.communicate(timeout=200)
    assert other.returncode == 0, errors
    scene.notes.append("the second run has ended with exit code 0, too")


def each_bash(text: str) -> Injection:
    """Every bash that runs a script of the jobs reads these lines first, on whichever node."""

    @contextmanager
    def inject(scene: Scene) -> Iterator[None]:
        start = scene.person.folder / "start.sh"
        start.write_text(text.format(nodes=[node.name for node in scene.site.sandbox.nodes]))
        scene.words += ["--set", f"cluster.environment.BASH_ENV={start}"]
        yield

    return inject


# libfaketime takes the moment of an absolute sleep for a faked one, whatever the clock, and refuses it.
_SLEEP = """
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_nanosleep(clockid_t clock, int flags, const struct timespec *request, struct timespec *left) {
    return syscall(SYS_clock_nanosleep, clock, flags, request, left) ? errno : 0;
}
"""


def clock(node: int, ahead_s: int) -> Injection:
    """Every process of the jobs on one node sees a wall clock that is ahead, or behind.

    The monotonic clock stays as it is, as on a node without NTP.
    """

    @contextmanager
    def inject(scene: Scene) -> Iterator[None]:
        assert FAKETIME.exists(), "apt-get install libfaketime"
        sleep = scene.site.home / "sleep.so"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-o", sleep, "-x", "c", "-"], input=_SLEEP, text=True, check=True
        )
        # libfaketime's shared memory is of one node, and srun takes the variables to the others.
        options = "FAKETIME_DISABLE_SHM=1 FAKETIME_DONT_FAKE_MONOTONIC=1"
        there = f"export LD_PRELOAD={sleep}:{FAKETIME} FAKETIME={ahead_s:+} {options}"
        line = f'[ "$(hostname)" = {{nodes[{node}]}} ] && {there} || unset LD_PRELOAD FAKETIME\n'
        with each_bash(line)(scene):
            yield
        begun = [RankRecord.read(scene.paths.rank_record("serve", rank)) for rank in (0, 1)]
        later_s = begun[1].started_at - begun[0].started_at if begun[0] and begun[1] else 0.0
        hours = json.loads(scene.person.types("status", scene.paths.folder, "--json").stdout)["use"][
            "gpu_hours"
        ]
        assert hours > 0, hours
        scene.notes.append(f"rank 1 has recorded a start {later_s:.0f} s after rank 0's")

    return inject
