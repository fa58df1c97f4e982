"""The members of a sandbox together, and whether its daemons answer."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from trtllm_hpc.errors import SandboxError
from trtllm_hpc.sandbox import processes
from trtllm_hpc.sandbox.layout import Folder
from trtllm_hpc.sandbox.machines import Machine


@dataclass(frozen=True)
class Cluster:
    """The members of a running sandbox, and how to ask its Slurm."""

    folder: Folder
    head: Machine
    nodes: list[Machine]
    interface: str
    """The machine's interface to the sandbox."""

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
        socket_path = self.folder.munge_socket
        return _listens(socket_path) and self._succeeds("munge", "--no-input", f"--socket={socket_path}")

    def database_answers(self) -> bool | None:
        """Whether MariaDB greets; ``None`` if this is not root, who alone can tell."""
        if os.geteuid() != 0:
            return None
        # The socket is in a file system of the head's own.
        return _greets(Path(f"/proc/{self.head.pid}/root{self.folder.database_socket}"))

    def accounting_answers(self) -> bool:
        """Whether slurmdbd accepts connections."""
        return self._accepts(self.head, 6819)

    def node_answers(self, node: Machine) -> bool:
        """Whether a node's slurmd accepts connections."""
        return self._accepts(node, 6818)

    def controller_answers(self) -> bool:
        """Whether slurmctld is up; scontrol alone would go on trying for most of a minute."""
        reachable = self._accepts(self.head, 6817) and self.munge_answers()
        return reachable and self._succeeds("scontrol", "ping")

    def node_states(self) -> dict[str, str]:
        """State of each node in sinfo's words; nothing if slurmctld does not answer."""
        try:
            lines = self.slurm("sinfo", "--Node", "--noheader", "--format=%N %T").split("\n")
        except SandboxError:
            return {}
        return dict(line.split(" ", 1) for line in lines if " " in line)

    def _accepts(self, machine: Machine, port: int) -> bool:
        with socket.socket() as client:
            client.settimeout(2)
            try:
                # Without its interface the address belongs to whoever the default route leads to.
                client.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self.interface.encode())
                client.connect((machine.address, port))
            except OSError:
                return False
        return True

    def _succeeds(self, *arguments: str) -> bool:
        try:
            self.slurm(*arguments)
        except SandboxError:
            return False
        return True


def _listens(path: Path) -> bool:
    """Whether a server is behind a UNIX socket."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
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
