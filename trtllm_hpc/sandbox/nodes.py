"""The head node and the compute nodes: each is a set of namespaces with its own process 1."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from trtllm_hpc.errors import SandboxError
from trtllm_hpc.sandbox import processes
from trtllm_hpc.sandbox.hosts import Folder
from trtllm_hpc.sandbox.processes import Process

NAMESPACES = ("--mount", "--uts", "--net", "--pid")

MOUNT_TIMEOUT_S = 20.0
END_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Node:
    """The head or a compute node, which looks like a separate host to its processes."""

    name: str
    address: str
    """IP address on the sandbox's bridge."""
    folder: Folder = field(compare=False)
    """The sandbox's state folder."""

    @property
    def pid(self) -> int | None:
        """Process ID, on the machine, of this node's process 1; ``None`` if the node is not up."""
        marked = marked_processes(self.folder, self.name)
        return next((process.pid for process in marked if processes.is_first_process(process.pid)), None)

    def entering(self, arguments: Sequence[str]) -> list[str]:
        """Return the command that runs ``arguments`` on this node; raise SandboxError if the node is not up.

        It uses ``nsenter``, because ``ip netns exec`` hides /sys/fs/cgroup.
        """
        pid = self.pid
        if pid is None:
            raise SandboxError(f"{self.name} is not up.", hint="trtllm-hpc sandbox status")
        # With --root, because entering a mount namespace would otherwise leave a chroot.
        return ["nsenter", "--target", str(pid), *NAMESPACES, "--root", "--", *arguments]

    def run(
        self, arguments: Sequence[str], *, timeout_s: float = 30, environment: Mapping[str, str] | None = None
    ) -> str:
        """Run a command on this node as root and return its output.

        Raises SandboxError if the node is not up, or the command fails or takes too long.
        """
        return processes.run(self.entering(arguments), timeout_s=timeout_s, environment=environment)

    def start_daemon(self, arguments: Sequence[str], output: Path, environment: Mapping[str, str]) -> None:
        """Start a child of process 1 in the background. Raises SandboxError if the node is not up."""
        command = self.entering(["setsid", "--fork", *arguments])
        with output.open("ab") as stream:
            done = subprocess.run(
                command,
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=dict(environment),
            )
        if done.returncode != 0:
            raise SandboxError(f"{self.name} cannot be entered.\n{tail(output)}")

    def processes(self) -> list[Process]:
        """Return every process on this node except process 1 and the `sleep` that it waits for."""
        first = self.pid
        namespace = None if first is None else processes.pid_namespace(first)
        if namespace is None:
            return []
        return [
            process
            for process in processes.all_processes()
            if process.pid != first
            and process.arguments != ("sleep", "infinity")
            and processes.pid_namespace(process.pid) == namespace
        ]


def start(node: Node, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a node, which ends when its standard input is closed, unless :func:`keep` was called."""
    command = [
        # In a session of its own, so that Ctrl-C reaches only `up`, which then ends the node in an orderly
        # way. Forked, because the node outlives `up`.
        *("setsid", "--fork"),
        *("unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc"),
        # The machine's later mounts are visible inside, but not the reverse.
        *("--propagation", "slave"),
        *("bash", str(node.folder.init), node.name),
    ]
    pipe = subprocess.PIPE
    with node.folder.output(node.name).open("wb") as errors:
        starting = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=errors, env=dict(environment), cwd="/"
        )
    starting.wait()
    return starting


def await_mounts(node: Node, starting: subprocess.Popen[bytes]) -> None:
    """Wait until process 1 has made the node's mounts. Raises SandboxError if it failed or took too long."""
    assert starting.stdout is not None
    output = starting.stdout.fileno()
    # Bash writes the whole line at once.
    if not select.select([output], [], [], MOUNT_TIMEOUT_S)[0] or os.read(output, 16) != b"ready\n":
        raise SandboxError(f"{node.name} did not start.\n{tail(node.folder.output(node.name))}")


def keep(starting: subprocess.Popen[bytes]) -> None:
    """Let a node outlive this process."""
    assert starting.stdin is not None
    starting.stdin.write(b"keep\n")
    starting.stdin.flush()


def marked_processes(folder: Folder, name: str | None = None) -> list[Process]:
    """Return the processes that hold the namespaces of a sandbox, or of its node ``name``.

    They are found in /proc by their arguments, the path of ``init.sh`` and the host name, because PID files
    could be missing, stale or forged. Only root's processes count.
    """
    marker = str(folder.init)
    return [
        process
        for process in processes.all_processes()
        if process.arguments[-3:-1] == ("bash", marker)
        and (name is None or process.arguments[-1] == name)
        and processes.owner(process.pid) == 0
    ]


def end_all(folder: Folder) -> None:
    """Kill every node of a sandbox and wait until none of its processes is left.

    Raises SandboxError if a process is still there after ``END_TIMEOUT_S``.
    """
    misses = 0
    # Search until nothing is found twice, because one search may miss a process that was just forked.
    while misses < 2:
        holders = marked_processes(folder)
        misses = 0 if holders else misses + 1
        _end({process.pid for process in holders})


def _end(holders: set[int]) -> None:
    """Kill processes; the kernel kills a whole PID namespace together with its process 1."""
    namespaces = {processes.pid_namespace(pid) for pid in holders if processes.is_first_process(pid)}
    # None means that a process has ended or is not readable, which would match unrelated processes below.
    namespaces.discard(None)

    def left() -> list[Process]:
        return [
            process
            for process in processes.all_processes()
            if process.pid in holders or processes.pid_namespace(process.pid) in namespaces
        ]

    for pid in holders:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if not processes.wait_until(lambda: not left(), END_TIMEOUT_S):
        names = ", ".join(f"{process.pid} ({process.arguments[0]})" for process in left())
        raise SandboxError(f"These processes cannot be killed: {names}.", hint="trtllm-hpc sandbox down")


def tail(log: Path, lines: int = 15) -> str:
    """Return the log's path and, indented below it, the last lines; a sentence if the log is empty."""
    try:
        text = log.read_text(errors="replace").splitlines()[-lines:]
    except OSError:
        text = []
    if not text:
        return f"  {log} is empty."
    return "\n".join([f"  the end of {log}:", *(f"    {line}" for line in text)])
