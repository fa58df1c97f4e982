"""Faults of files, file systems, ports and clocks."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.faults.scene import Scene, injection, shell
from tests.slurm.conftest import USER, user_processes
from tests.waiting import eventually
from trtllm_hpc.runtime.records import RankRecord

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
"""Library of the Debian package libfaketime."""

_LISTEN = """import socket, sys, time
s = socket.socket()
s.bind(("", int(sys.argv[1])))
s.listen()
time.sleep(300)"""

_CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "last_byte": lambda content: content[:-1],
    "header": lambda content: content[:8] + os.urandom(64) + content[72:],  # of a safetensors file
    "list": lambda content: b"[1, 2]\n",
    "noise": lambda content: content + os.urandom(5000) + b'\n{"event": 7}\n[]\nnull\n',
    "other_key": lambda content: b"x" * len(content.strip()) + b"\n",
}
_LINES = {
    "binary": bytes(range(256)),
    "errors": b"E0101 00:00:00.000000 1 server.cc:1] error: request 4711 failed: an error occurred\n",
}


@injection
def change(scene: Scene, pattern: str, how: str, field: str = "", value: str = "") -> Iterator[None]:
    """Change the content of a file in place: as ``how`` says, or (``field``) the value of a JSON field."""
    folder, _, name = scene.filled(pattern).partition("/**/")
    file = next(Path(folder).rglob(name)) if name else Path(folder)
    before = file.read_bytes()
    if how == "field":
        known = {**json.loads(before), field: int(value) if value.isdecimal() else value}
        file.write_text(json.dumps(known))
    else:
        file.write_bytes(_CHANGES[how](before))
    if name:
        scene.notes.append(f"the file is {file.name}")
    yield
    if scene.is_shared:
        file.write_bytes(before)


@injection
def move(scene: Scene, name: str) -> Iterator[None]:
    """Move a file or folder out of the run folder."""
    file = scene.paths.folder / name
    away = file.rename(scene.person.folder / f"away-{file.name}")
    yield
    if file.is_dir():  # the jobs may have created the folder again
        shutil.copytree(file, away, dirs_exist_ok=True)
        shutil.rmtree(file)
    away.rename(file)
    shutil.chown(file, USER.pw_uid, USER.pw_gid)


@injection
def grow_log(scene: Scene, kind: str, mib: str) -> Iterator[None]:
    """Append ``mib`` MiB to the leader's log."""
    log, line = scene.paths.rank_log("serve", 0), _LINES[kind]
    size = log.stat().st_size
    with log.open("ab") as file:
        for _ in range(int(mib)):
            file.write(line * (2**20 // len(line)))
    yield
    if scene.is_shared:
        os.truncate(log, size)


@injection
def small_runs(scene: Scene) -> Iterator[None]:
    """Put the folder of runs on a small file system."""
    scene.runs = scene.site.small
    scene.words += ["--runs", scene.runs]
    try:
        yield
    finally:
        for file in scene.runs.iterdir():
            shutil.rmtree(file) if file.is_dir() else file.unlink()


@injection
def fill_runs(scene: Scene) -> Iterator[None]:
    """Fill the file system of the folder of runs to the last byte."""
    filler = scene.runs / "filler"
    with filler.open("wb") as file:
        try:
            while True:
                os.write(file.fileno(), bytes(4096))
        except OSError:
            pass
    yield
    filler.unlink()


@injection
def freeze_runs(scene: Scene) -> Iterator[None]:
    """Freeze the file system of the runs for at most 70 s: writers wait, as for a file server that hangs."""
    freeze, thaw = (f"fsfreeze --{how} {scene.runs}" for how in ("freeze", "unfreeze"))
    # Another process unfreezes it, because this process may also have to wait.
    later = subprocess.Popen(["bash", "-c", f"sleep 70; {thaw}"], stderr=subprocess.DEVNULL)
    try:
        with shell(scene, "here", freeze, f"{thaw} 2>/dev/null || true"):
            yield
    finally:
        later.kill()


@injection
def take_port(scene: Scene, option: str) -> Iterator[None]:
    """Let another program listen on the port of the leader's server before the server does."""
    assert eventually(scene.paths.rank_record("serve", 0).exists, 30)
    node = scene.node_of(0)

    def chosen() -> str | None:
        arguments = [argument for process in user_processes(node) for argument in process.arguments]
        ports = [
            match[1] for argument in arguments if (match := re.fullmatch(rf"--{option}=(\d+)", argument))
        ]
        return ports[0] if ports else None

    port = eventually(chosen, 30)
    assert port, [process.arguments for process in user_processes(node)]
    output = scene.person.folder / "listener.out"
    node.start_daemon(["python3", "-c", _LISTEN, port], output, {"PATH": os.environ["PATH"]})
    eventually(lambda: f":{int(port):04X} 00000000:0000 0A" in node.run(["cat", "/proc/net/tcp"]), 5)
    yield
    for process in node.processes():
        if _LISTEN in process.arguments:
            os.kill(process.pid, 9)


@injection
def own_engine(scene: Scene) -> Iterator[None]:
    """Give the run its own copy of the engine."""
    copy = scene.person.folder / "engine"
    shutil.copytree(Path(scene.sections["engine"]["directory"]), copy)
    scene.sections["engine"]["directory"] = str(copy)
    yield


@injection
def own_model(scene: Scene) -> Iterator[None]:
    """Give the run its own copy of a model, from which the run builds its engine."""
    from trtllm_hpc.reference import synthetic  # here, because importing PyTorch takes seconds

    folder = scene.person.folder / "model"
    shutil.copytree(next(scene.site.engines[1].rglob("tokenizer")), folder)
    synthetic.make_model(seed=0, dtype="float32", max_seq_len=512).save_pretrained(folder)
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)  # transformers writes 0600, and the job's user is not the owner
    scene.sections["engine"]["directory"] = None
    scene.sections["model"] = {"path": str(folder)}
    yield


@injection
def second_build(scene: Scene) -> Iterator[None]:
    """Submit the same job a second time, which builds the same engine; both runs must complete."""
    words = ("submit", scene.job_file, "--cluster", scene.person.profile, "--wait", *scene.words)
    other = scene.person.command("trtllm-hpc", *words)
    yield
    _, errors = other.communicate(timeout=200)
    assert other.returncode == 0, errors
    scene.notes.append("the second run has ended with exit code 0, too")


@injection
def each_bash(scene: Scene, text: str) -> Iterator[None]:
    """Let every bash of the jobs, on any node, read ``text`` before its script."""
    start = scene.person.folder / "start.sh"
    start.write_text(f"{text}\n")
    scene.words += ["--set", f"cluster.environment.BASH_ENV={start}"]
    yield


# libfaketime treats the time of an absolute sleep as faked, even on the monotonic clock, and refuses it. This
# library therefore passes clock_nanosleep to the kernel.
_SLEEP = """
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_nanosleep(clockid_t clock, int flags, const struct timespec *request, struct timespec *left) {
    return syscall(SYS_clock_nanosleep, clock, flags, request, left) ? errno : 0;
}
"""


@injection
def clock(scene: Scene, ahead_s: str) -> Iterator[None]:
    """Put the wall clock of every job process on the second node ahead (or, if negative, behind).

    The monotonic clock is unchanged, as on a node without NTP.
    """
    assert FAKETIME.exists(), "apt-get install libfaketime"
    sleep = scene.site.home / "sleep.so"
    compiler = ["cc", "-shared", "-fPIC", "-o", str(sleep), "-x", "c", "-"]
    subprocess.run(compiler, input=_SLEEP, text=True, check=True)
    # libfaketime's shared memory exists on one node only, but srun copies the variables to other nodes.
    options = f"FAKETIME={int(ahead_s):+} FAKETIME_DISABLE_SHM=1 FAKETIME_DONT_FAKE_MONOTONIC=1"
    there = f'[ "$(hostname)" = {scene["node1"]} ] && export LD_PRELOAD={sleep}:{FAKETIME} {options}'
    with each_bash(scene, f"{there} || unset LD_PRELOAD FAKETIME"):
        yield
    begun = [RankRecord.read(scene.paths.rank_record("serve", rank)) for rank in (0, 1)]
    later_s = begun[1].started_at - begun[0].started_at if begun[0] and begun[1] else 0.0
    status = json.loads(scene.person.types("status", scene.paths.folder, "--json").stdout)
    assert status["use"]["gpu_hours"] > 0, status["use"]
    scene.notes.append(f"rank 1 has recorded a start {later_s:.0f} s after rank 0's")
