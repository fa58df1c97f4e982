"""Processes in /proc, commands with a time limit, and a lock against other processes."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trtllm_hpc.errors import SandboxError

PROC = Path("/proc")
ADMIN_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
POLL_S = 0.05

LOCK_TIMEOUT_S = 180.0
"""Seconds that `up` and `down` wait for another `up` or `down` of the same sandbox."""

Progress = Callable[[str], None]


def silent(_: str) -> None:
    """Show no progress."""


@dataclass(frozen=True)
class Process:
    """A process."""

    pid: int
    """Process ID on the machine, outside any PID namespace."""
    arguments: tuple[str, ...]


def search_path() -> str:
    """Return PATH with the folders of administrators' commands, which `su` and cron may leave out."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join([*folders, *(folder for folder in ADMIN_FOLDERS if folder not in folders)])


def which(command: str) -> str | None:
    """Return the path of a command in :func:`search_path`; ``None`` if it is missing."""
    return shutil.which(command, path=search_path())


def all_processes() -> Iterator[Process]:
    """Yield every process that has a command line, that is, all except kernel threads."""
    for folder in PROC.glob("[0-9]*"):
        try:
            raw = (folder / "cmdline").read_bytes()
        except OSError:
            continue  # the process has just ended
        if raw:
            arguments = raw.rstrip(b"\0").decode(errors="replace").split("\0")
            yield Process(int(folder.name), tuple(arguments))


def owner(pid: int) -> int | None:
    """Return the user ID of a process; ``None`` if the process has ended."""
    try:
        return (PROC / str(pid)).stat().st_uid
    except OSError:
        return None


def pid_namespace(pid: int) -> str | None:
    """Return a process's PID namespace; ``None`` if the process has ended or is not readable."""
    try:
        return str((PROC / str(pid) / "ns" / "pid").readlink())
    except OSError:
        return None


def is_first_process(pid: int) -> bool:
    """Return whether the process is process 1 of a PID namespace below this one."""
    try:
        status = (PROC / str(pid) / "status").read_text()
    except OSError:
        return False
    numbers = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
    return len(numbers) > 1 and numbers[-1] == "1"


def run(
    arguments: Sequence[str],
    *,
    timeout_s: float = 30,
    environment: Mapping[str, str] | None = None,
    text_in: str = "",
) -> str:
    """Run a command and return its output.

    Raises SandboxError if the command cannot be run, fails, or takes too long.
    """
    command = shlex.join(arguments)
    try:
        done = subprocess.run(
            arguments,
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            input=text_in,
            env=None if environment is None else dict(environment),
        )
    except OSError as error:
        raise SandboxError(f"`{command}` cannot be run: {error.strerror}.") from error
    except subprocess.TimeoutExpired as error:
        raise SandboxError(f"`{command}` did not end within {timeout_s:g} s.") from error
    if done.returncode != 0:
        output = (done.stderr or done.stdout).strip() or "it printed nothing"
        raise SandboxError(f"`{command}` failed with {done.returncode}: {output}")
    return done.stdout


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Poll until the condition holds; return whether it did within the time limit."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


@contextmanager
def lock(what: str, tell: Progress = silent, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Hold a lock against every other process on this machine.

    The lock is the name of an abstract Unix socket: the kernel frees it when its holder ends, for whatever
    reason, and no file is left behind. ``tell`` is called once if another process holds the lock. Raises
    SandboxError if that process still holds the lock after ``timeout_s``.
    """
    name = f"trtllm-hpc {what}"
    with socket.socket(socket.AF_UNIX) as holder:

        def taken() -> bool:
            try:
                holder.bind(f"\0{name}")
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                return False
            return True

        if not taken():
            tell(f"another `sandbox` command ({what})")
            if not wait_until(taken, timeout_s):
                raise SandboxError(
                    f"Another process has held the lock of the {what} for {timeout_s:g} s.",
                    hint=f"ss -xlp | grep '{name}'",
                )
        yield
