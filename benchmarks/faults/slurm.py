"""Faults of Slurm: its daemons and commands, and what users and administrators do to jobs."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator

from benchmarks.faults.processes import send, stopped
from benchmarks.faults.scene import Scene, injection
from benchmarks.faults.site import URGENT, Daemon
from tests.waiting import eventually
from trtllm_hpc.errors import SandboxError


def _daemon(scene: Scene, name: str) -> Daemon:
    node = scene.node_of(1) if name == "slurmd" else scene.site.sandbox.head
    return scene.site.daemon(node, name)


@injection
def kill_daemon(scene: Scene, name: str, seconds: str = "") -> Iterator[None]:
    """``kill -9`` of a daemon; it is there again at the end or after some seconds, as with systemd.

    In the middle of such seconds the user asks for the status.
    """
    daemon = _daemon(scene, name)
    send(daemon.pids, signal.SIGKILL)
    assert eventually(lambda: not daemon.pids, 10)
    try:
        if not seconds:
            yield
            return
        ends_at = time.monotonic() + float(seconds)
        time.sleep(float(seconds) / 3)
        asked = scene.person.types("status", scene.paths.folder)
        lines = (asked.stderr or asked.stdout).strip().splitlines()
        scene.notes.append(f"`status` meanwhile (exit code {asked.returncode}): {lines[0] if lines else ''}")
        time.sleep(max(0.0, ends_at - time.monotonic()))
    finally:
        scene.site.start(daemon)
    yield


@injection
def stop_daemon(scene: Scene, name: str, seconds: str) -> Iterator[None]:
    """SIGSTOP of a daemon for some seconds."""
    with stopped(_daemon(scene, name).pids):
        time.sleep(float(seconds))
    yield


@injection
def scontrol(scene: Scene, words: str, undo: str = "") -> Iterator[None]:
    """What an administrator types after ``scontrol``, and what takes it back."""
    undo = scene.filled(undo)
    scene.site.as_root("scontrol", *scene.filled(words).split())
    try:
        yield
    finally:
        if undo:
            scene.site.as_root("scontrol", *undo.split())


@injection
def requeue_refused(scene: Scene) -> Iterator[None]:
    """``scontrol requeue`` as an administrator types it, which Slurm refuses."""
    try:
        scene.site.as_root("scontrol", "requeue", scene.filled("{serve}"))
        scene.notes.append("Slurm has put the job back into the queue")
    except SandboxError as error:
        scene.notes.append(f"Slurm refuses it: {error.message.splitlines()[0].rpartition(': ')[2]}")
    yield


@injection
def preempt(scene: Scene) -> Iterator[None]:
    """A job of a partition with a higher priority needs the whole node of the leader."""
    node = scene.node_of(0).name
    script = ("--wrap=sleep 20", "--output=/dev/null", "--chdir=/")
    words = (f"--partition={URGENT}", f"--nodelist={node}", "--exclusive", *script)
    job = scene.site.as_root("sbatch", "--parsable", *words).strip()
    yield
    scene.site.as_root("scancel", job)


@injection
def scancel(scene: Scene, stage: str) -> Iterator[None]:
    """``scancel`` of one stage's job by the user."""
    scene.person.slurm("scancel", str(scene[stage]))
    yield


@injection
def answer(scene: Scene, names: str, script: str) -> Iterator[None]:
    """Slurm's commands on the login node are another program, of bash."""
    folder = scene.person.folder / "programs"
    folder.mkdir(mode=0o755)
    for name in names.split():
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(0o755)
    scene.person.environment["PATH"] = f"{folder}:{scene.person.bin}:{os.environ['PATH']}"
    yield
    del scene.person.environment["PATH"]
    shutil.rmtree(folder)
