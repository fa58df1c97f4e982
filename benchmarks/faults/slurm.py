"""Faults of Slurm: its daemons, and what users and administrators do to jobs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.faults.kill import Injection
from benchmarks.faults.scene import Scene
from benchmarks.faults.site import URGENT, Daemon
from tests.waiting import eventually
from trtllm_hpc.errors import SandboxError


def _end(daemon: Daemon) -> None:
    for pid in daemon.pids:
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not daemon.pids, 10)


@contextmanager
def slurmd_killed(scene: Scene) -> Iterator[None]:
    """For good, as far as the run is concerned."""
    daemon = scene.site.daemon(scene.node_of(1), "slurmd")
    _end(daemon)
    try:
        yield
    finally:
        scene.site.start(daemon)


@contextmanager
def slurmd_restarted(scene: Scene) -> Iterator[None]:
    """Killed, and there again after 5 s, as systemd has it."""
    daemon = scene.site.daemon(scene.node_of(1), "slurmd")
    _end(daemon)
    try:
        time.sleep(5)
    finally:
        scene.site.start(daemon)
    yield


@contextmanager
def slurmd_stopped(scene: Scene) -> Iterator[None]:
    """SIGSTOP for 20 s."""
    daemon = scene.site.daemon(scene.node_of(1), "slurmd")
    for number, pause_s in ((signal.SIGSTOP, 20), (signal.SIGCONT, 0)):
        for pid in daemon.pids:
            os.kill(pid, number)
        time.sleep(pause_s)
    yield


@contextmanager
def slurmctld_and_leader(scene: Scene) -> Iterator[None]:
    """Slurm cannot end the job of the dead server, nor say anything of it."""
    daemon = scene.site.daemon(scene.site.sandbox.head, "slurmctld")
    _end(daemon)
    os.kill(scene.server(0), signal.SIGKILL)
    try:
        yield
    finally:
        scene.site.start(daemon)


@contextmanager
def slurmctld_away(scene: Scene) -> Iterator[None]:
    """Killed, and there again after 30 s; the user asks for the status meanwhile."""
    daemon = scene.site.daemon(scene.site.sandbox.head, "slurmctld")
    _end(daemon)
    try:
        time.sleep(10)
        asked = scene.person.types("status", scene.paths.folder)
        lines = (asked.stderr or asked.stdout).strip().splitlines()
        scene.notes.append(f"`status` meanwhile (exit code {asked.returncode}): {lines[0] if lines else ''}")
        time.sleep(18)
    finally:
        scene.site.start(daemon)
    yield


@contextmanager
def slurmdbd_killed(scene: Scene) -> Iterator[None]:
    """Accounting is away to the end of the run."""
    daemon = scene.site.daemon(scene.site.sandbox.head, "slurmdbd")
    _end(daemon)
    try:
        yield
    finally:
        scene.site.start(daemon)


@contextmanager
def time_limit(scene: Scene) -> Iterator[None]:
    """The serve job's limit becomes one minute; Slurm looks at limits twice a minute."""
    scene.site.as_root("scontrol", "update", f"jobid={scene.job('serve')}", "timelimit=1")
    yield


@contextmanager
def requeue_refused(scene: Scene) -> Iterator[None]:
    """`scontrol requeue` as an administrator types it."""
    try:
        scene.site.as_root("scontrol", "requeue", scene.job("serve"))
        scene.notes.append("Slurm has put the job back into the queue")
    except SandboxError as error:
        scene.notes.append(f"Slurm refuses it: {error.message.splitlines()[0].rpartition(': ')[2]}")
    yield


def requeue(how: str) -> Injection:
    """The same after the administrator has allowed what the job forbids."""

    @contextmanager
    def inject(scene: Scene) -> Iterator[None]:
        job = scene.job("serve")
        scene.site.as_root("scontrol", "update", f"jobid={job}", "requeue=1")
        scene.site.as_root("scontrol", how, job)
        yield

    return inject


def administered(words: tuple[str, ...], undone: tuple[str, ...]) -> Injection:
    """What an administrator types after ``scontrol``, and what takes it back."""

    @contextmanager
    def inject(scene: Scene) -> Iterator[None]:
        known = {"node1": scene.site.sandbox.nodes[1].name}
        for stage in ("serve", "companion"):
            if f"{{{stage}}}" in words:
                known[stage] = scene.job(stage)
        scene.site.as_root("scontrol", *(word.format(**known) for word in words))
        try:
            yield
        finally:
            if undone:
                scene.site.as_root("scontrol", *(word.format(**known) for word in undone))

    return inject


@contextmanager
def preempted(scene: Scene) -> Iterator[None]:
    """A job of a partition with a higher priority needs the whole node of the leader."""
    node = scene.node_of(0).name
    script = ("--wrap=sleep 20", "--output=/dev/null", "--chdir=/")
    words = (f"--partition={URGENT}", f"--nodelist={node}", "--exclusive", *script)
    job = scene.site.as_root("sbatch", "--parsable", *words).strip()
    yield
    scene.site.as_root("scancel", job)


def cancelled(stage: str) -> Injection:
    """`scancel` of one stage's job."""

    @contextmanager
    def inject(scene: Scene) -> Iterator[None]:
        scene.person.slurm("scancel", scene.job(stage))
        yield

    return inject
