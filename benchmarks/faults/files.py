"""Faults of files, file systems, ports and clocks."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.faults.kill import Injection
from benchmarks.faults.scene import Scene
from tests.slurm.conftest import USER, user_processes
from tests.waiting import eventually
from trtllm_hpc.runtime.records import RankRecord

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


@contextmanager
def port_taken(scene: Scene) -> Iterator[None]:
    """Another program listens on the HTTP port before the leader's server does."""
    assert eventually(scene.paths.rank_record("serve", 0).exists, 30)
    node = scene.node_of(0)

    def chosen() -> str | None:
        arguments = [argument for one in user_processes(node) for argument in one.arguments]
        ports = [
            found[1] for argument in arguments if (found := re.fullmatch(r"--http-port=(\d+)", argument))
        ]
        return ports[0] if ports else None

    port = eventually(chosen, 30)
    assert port, [one.arguments for one in user_processes(node)]
    output = scene.person.folder / "listener.out"
    node.start_daemon(["python3", "-c", _LISTEN, port], output, {"PATH": os.environ["PATH"]})
    eventually(lambda: f":{int(port):04X} 00000000:0000 0A" in node.run(["cat", "/proc/net/tcp"]), 5)
    yield
    for one in node.processes():
        if _LISTEN in one.arguments:
            os.kill(one.pid, 9)


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


def engine_damaged(ranks: int) -> Injection:
    """The largest file of the engine lacks its last byte, before the submission."""

    @contextmanager
    def inject(scene: Scene) -> Iterator[None]:
        copy = scene.person.folder / "engine"
        shutil.copytree(scene.site.engines[ranks], copy)
        largest = max(
            (file for file in copy.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size
        )
        os.truncate(largest, largest.stat().st_size - 1)
        scene.sections["engine"]["directory"] = str(copy)
        scene.notes.append(f"the file is {largest.name}")
        yield

    return inject


@contextmanager
def engine_gone(scene: Scene) -> Iterator[None]:
    """The engine's folder is moved away while the ranks load it."""
    copy = Path(scene.sections["engine"]["directory"])
    copy.rename(copy.with_name("engine-moved"))
    yield


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


@contextmanager
def clock_off(scene: Scene) -> Iterator[None]:
    """Every process of the jobs on the second node sees a clock that is an hour ahead."""
    assert FAKETIME.exists(), "apt-get install libfaketime"
    node = scene.site.sandbox.nodes[1].name
    # Every bash that runs a script reads this file first, on whichever node.
    start = scene.person.folder / "clock.sh"
    start.write_text(f'[ "$(hostname)" != {node} ] || export LD_PRELOAD={FAKETIME} FAKETIME=+3600\n')
    scene.words += ["--set", f"cluster.environment.BASH_ENV={start}"]
    yield
    begun = [RankRecord.read(scene.paths.rank_record("serve", rank)) for rank in (0, 1)]
    ahead_s = begun[1].started_at - begun[0].started_at if begun[0] and begun[1] else 0.0
    scene.notes.append(f"rank 1 has recorded a start {ahead_s:.0f} s after rank 0's")
