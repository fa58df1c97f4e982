"""The daemons of a sandbox, in the order in which they need each other."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trtllm_hpc.errors import SandboxError
from trtllm_hpc.sandbox import processes
from trtllm_hpc.sandbox.layout import Folder
from trtllm_hpc.sandbox.machines import Machine, tail

START_TIMEOUT_S = 60.0
"""Bound for each daemon; on an idle machine each takes a second or two."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Cluster:
    """The members of a running sandbox, and how to ask its Slurm."""

    folder: Folder
    head: Machine
    nodes: list[Machine]

    @property
    def environment(self) -> dict[str, str]:
        """A small environment of its own: what surrounds `up` must not leak into jobs."""
        return {
            "PATH": processes.search_path(),
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "SLURM_CONF": str(self.folder.slurm_conf),
            # slurmdbd.conf cannot name a socket; the client library reads this.
            "MYSQL_UNIX_PORT": str(self.folder.database_socket),
        }

    def slurm(self, *arguments: str, timeout_s: float = 20) -> str:
        """Ask Slurm, from the machine, as any user would."""
        return processes.run(arguments, timeout_s=timeout_s, environment=self.environment)

    # Probes: whether each daemon answers ---------------------------------------------

    def munge_answers(self) -> bool:
        """Whether munged signs a credential."""
        return self._succeeds("munge", "--no-input", f"--socket={self.folder.munge_socket}")

    def database_answers(self) -> bool | None:
        """Whether MariaDB greets; ``None`` if this is not root, who alone can tell."""
        if os.geteuid() != 0:
            return None
        # The socket is in a file system of the head's own.
        return _greets(Path(f"/proc/{self.head.pid}/root{self.folder.database_socket}"))

    def accounting_answers(self) -> bool:
        """Whether slurmdbd accepts connections."""
        return _accepts(self.head.address, 6819)

    def node_answers(self, node: Machine) -> bool:
        """Whether a node's slurmd accepts connections."""
        return _accepts(node.address, 6818)

    def controller_answers(self) -> bool:
        """Whether slurmctld is up; a refused connection is an answer, scontrol would try again for long."""
        return _accepts(self.head.address, 6817) and self._succeeds("scontrol", "ping")

    def node_states(self) -> dict[str, str]:
        """State of each node in sinfo's words; nothing if slurmctld does not answer."""
        if not self.controller_answers():
            return {}
        try:
            lines = self.slurm("sinfo", "--Node", "--noheader", "--format=%N %T").split("\n")
        except SandboxError:
            return {}
        return dict(line.split(" ", 1) for line in lines if " " in line)

    def _succeeds(self, *arguments: str) -> bool:
        try:
            self.slurm(*arguments)
        except SandboxError:
            return False
        return True


def start(cluster: Cluster, tell: Progress) -> None:
    """Start every daemon, and return when the nodes are idle.

    Raises:
        SandboxError: one died or did not answer in time; holds the end of its log.
    """
    folder, head = cluster.folder, cluster.head
    tell("munge")
    _launch(cluster, head, "munged", _munged(folder))
    tell("MariaDB (a new database)")
    head.run(_new_database(folder), timeout_s=START_TIMEOUT_S, environment=cluster.environment)
    _launch(cluster, head, "mariadbd", ["mariadbd", f"--defaults-file={folder.database_conf}"])
    _await(head, "munged", cluster.munge_answers, folder.log("munged"))
    _await(head, "mariadbd", lambda: bool(cluster.database_answers()), folder.log("mariadbd"))
    tell("slurmdbd")
    _launch(cluster, head, "slurmdbd", ["slurmdbd", "-D"])
    _await(head, "slurmdbd", cluster.accounting_answers, folder.log("slurmdbd"))
    tell("slurmctld")
    _launch(cluster, head, "slurmctld", ["slurmctld", "-D", "-f", str(folder.slurm_conf)])
    _await(head, "slurmctld", cluster.controller_answers, folder.log("slurmctld"))
    tell(f"slurmd on {', '.join(node.name for node in cluster.nodes)}")
    for node in cluster.nodes:
        _launch(cluster, node, f"slurmd-{node.name}", _slurmd(folder, node))
    for node in cluster.nodes:
        idle = partial(_is_idle, cluster, node)
        _await(node, "slurmd", idle, folder.log(f"slurmd-{node.name}"))


def _munged(folder: Folder) -> list[str]:
    return [
        "munged",
        "--foreground",
        f"--key-file={folder.munge_key}",
        f"--socket={folder.munge_socket}",
        f"--pid-file={folder.munge / 'munged.pid'}",
        f"--seed-file={folder.munge / 'munged.seed'}",
        f"--log-file={folder.log('munged')}",
    ]


def _new_database(folder: Folder) -> list[str]:
    # "normal" is root without a password, and nobody but the head's root can
    # reach the socket.
    return [
        "mariadb-install-db",
        f"--defaults-file={folder.database_conf}",
        "--user=root",
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
        "--skip-name-resolve",
    ]


def _slurmd(folder: Folder, node: Machine) -> list[str]:
    return ["slurmd", "-D", "-N", node.name, "-f", str(folder.slurm_conf), "-d", str(folder.stepd)]


def _is_idle(cluster: Cluster, node: Machine) -> bool:
    return cluster.node_states().get(node.name) == "idle"


def _launch(cluster: Cluster, machine: Machine, log: str, arguments: list[str]) -> None:
    machine.start_daemon(arguments, cluster.folder.output(log), cluster.environment)


def _await(machine: Machine, program: str, answers: Callable[[], bool], log: Path) -> None:
    """Wait until a daemon answers, as long as it lives."""

    def settled() -> bool:
        return answers() or not machine.has_process(program)

    if processes.wait_until(settled, START_TIMEOUT_S) and answers():
        return
    died = not machine.has_process(program)
    happened = "ended at once" if died else f"did not answer within {START_TIMEOUT_S:g} s"
    # A daemon that ends before its log is open has spoken on its output only.
    opened = log.exists() and log.stat().st_size > 0
    raise SandboxError(
        f"{program} on {machine.name} {happened}.\n{tail(log if opened else log.with_suffix('.out'))}"
    )


def _accepts(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=2).close()
    except OSError:
        return False
    return True


def _greets(path: Path) -> bool:
    """Whether a server behind a UNIX socket says something to a new client."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(2)
        try:
            client.connect(str(path))
            return bool(client.recv(1))
        except OSError:
            return False
