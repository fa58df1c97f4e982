"""The head and the nodes: each a set of namespaces under one process 1."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from trtllm_hpc.errors import SandboxError
from trtllm_hpc.sandbox import processes
from trtllm_hpc.sandbox.layout import Folder, Member
from trtllm_hpc.sandbox.processes import Process

NAMESPACES = ("--mount", "--uts", "--net", "--pid")


@dataclass(frozen=True)
class Machine:
    """One member of a sandbox: a host of its own, as far as its processes can tell."""

    member: Member
    folder: Folder

    @property
    def name(self) -> str:
        """Host name."""
        return self.member.name

    @property
    def address(self) -> str:
        """IP address on the sandbox's bridge."""
        return self.member.address

    @property
    def pid(self) -> int | None:
        """Process 1 of this member, as the machine numbers it; ``None`` if it is not up."""
        marked = marked_processes(self.folder, self.name)
        return next((each.pid for each in marked if processes.is_first_process(each.pid)), None)

    @property
    def netns(self) -> Path | None:
        """The network namespace, as a path for ``nsenter --net=``."""
        pid = self.pid
        return None if pid is None else Path(f"/proc/{pid}/ns/net")

    def entering(self, arguments: Sequence[str]) -> list[str]:
        """The command line that runs ``arguments`` on this member.

        ``nsenter`` and not ``ip netns exec``: the latter hides /sys/fs/cgroup.

        Raises:
            SandboxError: the member is not up.
        """
        pid = self.pid
        if pid is None:
            raise SandboxError(f"{self.name} is not up.", hint="trtllm-hpc sandbox status")
        # --root: entering a mount namespace would otherwise leave a chroot.
        return ["nsenter", "--target", str(pid), *NAMESPACES, "--root", "--", *arguments]

    def run(
        self,
        arguments: Sequence[str],
        *,
        timeout_s: float = 30,
        environment: Mapping[str, str] | None = None,
    ) -> str:
        """Run a command on this member, as root, and give its output.

        Raises:
            SandboxError: the member is not up, or the command fails or takes too long.
        """
        return processes.run(self.entering(arguments), timeout_s=timeout_s, environment=environment)

    def start_daemon(self, arguments: Sequence[str], output: Path, environment: Mapping[str, str]) -> None:
        """Start a command that stays, as a child of process 1.

        Raises:
            SandboxError: the member is not up.
        """
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
        """Every process on this member but its process 1 and what keeps that asleep."""
        first = self.pid
        namespace = None if first is None else processes.pid_namespace(first)
        if namespace is None:
            return []
        return [
            each
            for each in processes.all_processes()
            if each.pid != first
            and each.arguments != ("sleep", "infinity")
            and processes.pid_namespace(each.pid) == namespace
        ]

    def has_process(self, program: str) -> bool:
        """Whether a program of that name runs here, or is just being started by `setsid --fork`."""
        return any(
            Path(argument).name == program for each in self.processes() for argument in each.arguments[:3]
        )


class Starting:
    """A member that lives only as long as this context, unless it is told to stay.

    Args:
        machine: who it is.
        environment: of process 1.
    """

    def __init__(self, machine: Machine, environment: Mapping[str, str]) -> None:
        self.machine = machine
        self._output = machine.folder.output(machine.name)
        with self._output.open("wb") as errors:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                [
                    # A session of its own: Ctrl-C is for `up`, which then takes this
                    # down in order. And nobody's child: `up` ends before it does.
                    *("setsid", "--fork"),
                    *("unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc"),
                    # Later mounts of the machine are seen inside, never the other way.
                    *("--propagation", "slave"),
                    *("bash", str(machine.folder.init), machine.name),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=dict(environment),
                cwd="/",
            )
        self._process.wait()

    def __enter__(self) -> Starting:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go: what was not told to stay reads the end of its input, and ends."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def wait(self, timeout_s: float) -> None:
        """Wait until process 1 has furnished the member.

        Raises:
            SandboxError: it failed, or took too long.
        """
        assert self._process.stdout is not None
        said = _read_line(self._process.stdout, timeout_s)
        if said != b"ready\n":
            raise SandboxError(f"{self.machine.name} did not start.\n{tail(self._output)}")

    def keep(self) -> None:
        """Let the member outlive this process."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"keep\n")
        self._process.stdin.flush()


def marked_processes(folder: Folder, name: str | None = None) -> list[Process]:
    """The processes of a sandbox that hold its namespaces, from /proc alone.

    They are known by their arguments, the path of ``init.sh`` and the host
    name: no PID file can be missing, stale or forged. Only root's count.
    """
    marker = str(folder.init)
    return [
        each
        for each in processes.all_processes()
        if each.arguments[-3:-1] == ("bash", marker)
        and (name is None or each.arguments[-1] == name)
        and processes.owner(each.pid) == 0
    ]


def end_all(folder: Folder, timeout_s: float) -> None:
    """Kill every member of a sandbox, and wait until nothing of it runs.

    Raises:
        SandboxError: something does not die within the bound.
    """
    quiet_looks = 0
    # Two looks: one that was just forked may have escaped the first.
    while quiet_looks < 2:
        found = marked_processes(folder)
        quiet_looks = 0 if found else quiet_looks + 1
        _end({each.pid for each in found}, timeout_s)


def _end(holders: set[int], timeout_s: float) -> None:
    """Kill these processes; the kernel kills all of a PID namespace with its process 1."""
    namespaces = {processes.pid_namespace(pid) for pid in holders if processes.is_first_process(pid)}

    def left() -> list[Process]:
        return [
            each
            for each in processes.all_processes()
            if each.pid in holders or processes.pid_namespace(each.pid) in namespaces
        ]

    for pid in holders:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if not processes.wait_until(lambda: not left(), timeout_s):
        names = ", ".join(f"{each.pid} ({each.arguments[0]})" for each in left())
        raise SandboxError(f"These processes do not die: {names}.", hint="trtllm-hpc sandbox down")


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log, indented, with its path; says so if there are none."""
    try:
        text = log.read_text(errors="replace").splitlines()[-lines:]
    except OSError:
        text = []
    if not text:
        return f"  {log} is empty."
    return "\n".join([f"  the end of {log}:", *(f"    {line}" for line in text)])


def _read_line(stream: IO[bytes], timeout_s: float) -> bytes:
    """One line, or what came before the end or the bound."""
    deadline = time.monotonic() + timeout_s
    said = b""
    while not said.endswith(b"\n"):
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not select.select([stream], [], [], remaining)[0]:
            break
        piece = os.read(stream.fileno(), 1)
        if not piece:
            break
        said += piece
    return said
