"""Faults of Slurm's daemons and commands, and interventions of users and administrators."""

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
    """Kill a daemon with SIGKILL, and start it again: at the end, or after ``seconds``, as systemd does.

    With ``seconds``, the user runs ``status`` while the daemon is missing.
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
        status = scene.person.types("status", scene.paths.folder)
        lines = (status.stderr or status.stdout).strip().splitlines()
        scene.notes.append(f"`status` meanwhile (exit code {status.returncode}): {lines[0] if lines else ''}")
        time.sleep(max(0.0, ends_at - time.monotonic()))
    finally:
        scene.site.start(daemon)
    yield


@injection
def stop_daemon(scene: Scene, name: str, seconds: str) -> Iterator[None]:
    """Stop a daemon with SIGSTOP for ``seconds``."""
    with stopped(_daemon(scene, name).pids):
        time.sleep(float(seconds))
    yield


@injection
def scontrol(scene: Scene, words: str, undo: str = "") -> Iterator[None]:
    """Run ``scontrol`` as an administrator, and at the end ``scontrol`` with the words that undo it."""
    undo = scene.filled(undo)
    scene.site.as_root("scontrol", *scene.filled(words).split())
    try:
        yield
    finally:
        if undo:
            scene.site.as_root("scontrol", *undo.split())


@injection
def requeue_refused(scene: Scene) -> Iterator[None]:
    """Run ``scontrol requeue`` as an administrator; Slurm must refuse it."""
    try:
        scene.site.as_root("scontrol", "requeue", scene.filled("{serve}"))
        scene.notes.append("Slurm has put the job back into the queue")
    except SandboxError as error:
        scene.notes.append(f"Slurm refuses it: {error.message.splitlines()[0].rpartition(': ')[2]}")
    yield


@injection
def preempt(scene: Scene) -> Iterator[None]:
    """Preempt the run with a job of a higher-priority partition that needs the leader's whole node."""
    node = scene.node_of(0).name
    script = ("--wrap=sleep 20", "--output=/dev/null", "--chdir=/")
    words = (f"--partition={URGENT}", f"--nodelist={node}", "--exclusive", *script)
    job = scene.site.as_root("sbatch", "--parsable", *words).strip()
    yield
    scene.site.as_root("scancel", job)


@injection
def scancel(scene: Scene, stage: str) -> Iterator[None]:
    """Cancel a stage's job with ``scancel`` as the user."""
    scene.person.slurm("scancel", str(scene[stage]))
    yield


@injection
def answer(scene: Scene, names: str, script: str) -> Iterator[None]:
    """Replace Slurm's commands on the login node by a bash script."""
    folder = scene.person.folder / "programs"
    folder.mkdir(mode=0o755)
    for name in names.split():
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(0o755)
    scene.person.environment["PATH"] = f"{folder}:{scene.person.bin}:{os.environ['PATH']}"
    yield
    del scene.person.environment["PATH"]
    shutil.rmtree(folder)
