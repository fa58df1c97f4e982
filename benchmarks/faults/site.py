"""The cluster into which faults are injected, and the ordinary user who submits to the cluster."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.sharing import build_engine
from tests.slurm.conftest import USER, Person, build_wheel, make_environment, user_processes
from tests.waiting import eventually
from trtllm_hpc.errors import SandboxError
from trtllm_hpc.sandbox import Node, Sandbox, processes
from trtllm_hpc.sandbox.cluster import Cluster

URGENT = "urgent"
"""Name of a partition whose jobs preempt other jobs."""

_SMALL = "48m"
_PREEMPTION = f"""
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
PartitionName={URGENT} Nodes=ALL PriorityTier=10 MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True)
class Daemon:
    """A Slurm daemon with its command line, so that the daemon can be started again."""

    node: Node
    name: str
    arguments: tuple[str, ...]

    @property
    def pids(self) -> list[int]:
        """Process IDs of the daemon, as this machine numbers processes."""
        return [process.pid for process in self.node.processes() if process.arguments == self.arguments]


@dataclass
class Site:
    """A sandbox with two nodes, and a user who has installed the wheel."""

    sandbox: Sandbox
    home: Path
    """The user's folder, visible on all nodes."""
    bin: Path
    """Folder of the installed programs."""
    small: Path
    """Folder of a small file system, visible on all nodes."""
    engines: dict[int, Path]
    """Folder of a finished engine by number of ranks."""

    @property
    def cluster(self) -> Cluster:
        layout = self.sandbox.layout
        assert layout is not None
        return layout

    def person(self, name: str) -> Person:
        """Return the user with a new profile, folder of runs and engine cache for a fault."""
        folder = self.home / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        shutil.chown(folder, USER.pw_uid, USER.pw_gid)
        profile = folder / "cluster.yaml"
        settings = {
            "name": self.sandbox.name,
            "slurm_conf": str(self.sandbox.slurm_conf),
            "partition": "batch",
            "gpus_per_node": 4,
            "triton": {"server": "pytriton"},
            "runs_folder": str(folder / "runs"),
            "engines_folder": str(folder / "engines"),
        }
        profile.write_text(json.dumps(settings), encoding="utf-8")
        return Person(self.sandbox, self.bin, folder, profile)

    def as_root(self, *arguments: str) -> str:
        """Run a Slurm command as the cluster's administrator, and return its output."""
        return self.cluster.slurm(*arguments)

    def daemon(self, node: Node, name: str) -> Daemon:
        """Return a daemon that runs on a node."""
        running = [process for process in node.processes() if Path(process.arguments[0]).name == name]
        assert running, f"no {name} on {node.name}"
        return Daemon(node, name, running[0].arguments)

    def start(self, daemon: Daemon) -> None:
        """Start a daemon again, and wait until it answers."""
        answers = {
            "slurmctld": self.cluster.controller_answers,
            "slurmdbd": self.cluster.accounting_answers,
            "slurmd": lambda: self.cluster.node_answers(daemon.node),
        }[daemon.name]
        output = self.cluster.folder.output(f"{daemon.name}-again")
        daemon.node.start_daemon(daemon.arguments, output, self.cluster.environment)
        assert processes.wait_until(answers, 30), f"{daemon.name} does not answer"

    def clean(self) -> None:
        """End every job and process of the user, and wait until the nodes are idle for the next fault."""
        self.as_root("scancel", f"--user={USER.pw_name}")
        eventually(lambda: not self.as_root("squeue", "--noheader").strip(), 40)
        for node in self.sandbox.nodes:
            for process in user_processes(node):
                with suppress(ProcessLookupError):
                    os.kill(process.pid, 9)
            node.run(["bash", "-c", "rm -rf /dev/shm/*"])
            if self.cluster.node_states().get(node.name) != "idle":
                with suppress(SandboxError):  # the node may be idle by now
                    self.as_root("scontrol", "update", f"nodename={node.name}", "state=resume")
        if not eventually(self._is_idle, 40):
            states = self.cluster.node_states()
            raise RuntimeError(f"the nodes are not idle again after 40 s: {states}")

    def _is_idle(self) -> bool:
        return set(self.cluster.node_states().values()) == {"idle"}


@contextmanager
def site(name: str, ranks: Sequence[int], nodes: int = 2) -> Iterator[Site]:
    """Start a sandbox, install the package and build the engines; remove everything at the end."""
    home = Path(tempfile.mkdtemp(prefix=f"trtllm-hpc-{name}-", dir="/var/tmp"))
    sandbox = Sandbox(name)
    small = home / "small"
    try:
        home.chmod(0o755)
        _mount_small(small)
        environment = home / "environment"
        make_environment(environment, build_wheel(home / "wheel"))
        engines = {count: home / f"engine-tp{count}" for count in ranks}
        for count, folder in engines.items():
            build_engine(folder, ranks=count, synthetic="tiny-llama")
        sandbox.up(nodes, 4)
        cluster = Site(sandbox, home, environment / "bin", small, engines)
        _allow_preemption(cluster)
        yield cluster
    finally:
        sandbox.down()
        subprocess.run(["umount", "--lazy", small], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(home, ignore_errors=True)


def _mount_small(folder: Path) -> None:
    """Mount a small ext4 file system. Call this before the nodes start: they may not see later mounts."""
    folder.mkdir()
    # Not a tmpfs, because fsfreeze cannot freeze a tmpfs.
    image = folder.with_suffix(".image")
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image, _SMALL], check=True)
    subprocess.run(["mount", "-o", "loop", image, folder], check=True)
    shutil.rmtree(folder / "lost+found")
    shutil.chown(folder, USER.pw_uid, USER.pw_gid)
    folder.chmod(0o700)


def _allow_preemption(cluster: Site) -> None:
    """Add a partition whose jobs preempt others, and restart slurmctld, which reads this at its start."""
    conf = Path(cluster.sandbox.slurm_conf)
    conf.write_text(conf.read_text() + _PREEMPTION)
    daemon = cluster.daemon(cluster.sandbox.head, "slurmctld")
    for pid in daemon.pids:
        os.kill(pid, 15)
    eventually(lambda: not daemon.pids, 20)
    cluster.start(daemon)
    cluster.as_root("scontrol", "reconfigure")
    time.sleep(1)
