"""Start, signal and inspect processes; a started process does not outlive the process that started it."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TICK_S = 0.1
_GRACE_S = 5.0
"""Seconds from SIGTERM to SIGKILL. Slurm itself gives 30 s in all, unless the site shortens it."""
_TASKS_GRACE_S = 10.0
"""Seconds from the first failure of a task, or a signal, to SIGKILL for the other tasks."""
_LARGEST_REQUEST = 64 << 20
"""Bytes; also the limit of newer Triton releases' HTTP server (``--http-max-input-size``)."""
# Loaded here and not in preexec_fn: nothing may be allocated between fork and exec.
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose parent dies (prctl(2))."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def allow_large_requests() -> None:
    """Raise the stack limit, so that programs started later have room for a large request in each thread.

    Triton's HTTP server (2.51) puts the body of a ``generate`` request on the stack, and dies with a
    segmentation fault if the stack is too small: at 8 MB with the usual limit, or at 2 MB without a limit,
    because glibc then uses 2 MB for threads. A stack uses memory only as it grows.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    limit = _LARGEST_REQUEST if hard == resource.RLIM_INFINITY else min(_LARGEST_REQUEST, hard)
    if soft == resource.RLIM_INFINITY or soft < limit:
        resource.setrlimit(resource.RLIMIT_STACK, (limit, hard))


def start_bound(
    command: Sequence[str],
    environment: Mapping[str, str],
    output: int | Path | None = None,
    inherited: Sequence[int] = (),
    *,
    session: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a process that the kernel kills when this process dies in any way.

    Args:
        output: a file descriptor, or a log to append to; by default this process's own output.
        inherited: file descriptors to pass on.
        session: whether the process gets its own session and process group.
    """
    if isinstance(output, Path):
        log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            return start_bound(command, environment, log, inherited, session=session)
        finally:
            os.close(log)
    return subprocess.Popen(
        command,
        env=dict(environment),
        preexec_fn=lambda: _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
        stdout=output,
        stderr=output,
        pass_fds=inherited,
        start_new_session=session,
    )


def captured(
    command: Sequence[str],
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    *,
    session: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, without input; raise OSError or subprocess.TimeoutExpired."""
    return subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
        start_new_session=session,
    )


def output_of(command: Sequence[str], timeout_s: float, *, with_errors: bool = False) -> str | None:
    """Return a program's output, ``with_errors`` also its stderr; ``None`` if it fails or is too slow."""
    try:
        answer = captured(command, timeout_s)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if answer.returncode else answer.stdout + answer.stderr * with_errors


def run_group(
    command: Sequence[str],
    environment: Mapping[str, str],
    stop: Callable[[], bool],
    *,
    output: int | None = None,
    grace_s: float = _GRACE_S,
) -> int:
    """Run a command to its end in a process group of its own, and leave no process of the group behind.

    ``stop`` is polled; once it returns true, the whole group gets SIGTERM, and SIGKILL after ``grace_s``
    seconds. ``output`` as for :func:`start_bound`. Return the exit code, or 128 plus a signal's number, as
    the shell does.
    """
    child = start_bound(command, environment, output, session=True)
    kill_at: float | None = None
    try:
        while child.poll() is None:
            if kill_at is None and stop():
                kill_at = time.monotonic() + grace_s
                signal_group(child.pid, signal.SIGTERM)
            if kill_at is not None and time.monotonic() > kill_at:
                signal_group(child.pid, signal.SIGKILL)
            time.sleep(_TICK_S)
    finally:
        # Kill what the command left running: its output is complete now, and must not grow any more.
        signal_group(child.pid, signal.SIGKILL)
        child.wait()
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Signal processes; skip those that are gone."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def signal_group(group: int, number: signal.Signals) -> bool:
    """Signal a process group; return whether the group exists and belongs to this user."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


def start_ticks(pid: int) -> int | None:
    """Return a process's start time in clock ticks since boot (proc(5)); ``None`` if the process is gone.

    A process ID may be reused; with the start time it is unique.
    """
    fields = _stat(pid)
    return None if not fields or fields[0] == "Z" else int(fields[19])


def seconds_of(pid: int) -> Iterator[None]:
    """Yield once a second until a process is gone."""
    begun = start_ticks(pid)
    while begun is not None and start_ticks(pid) == begun:
        yield
        time.sleep(1)


def state_of(pid: int) -> str | None:
    """Return a process's state, one letter (proc(5)); ``None`` if the process is gone."""
    fields = _stat(pid)
    return fields[0] if fields else None


def parent_of(pid: int) -> int | None:
    """Return the process id of a process's parent; ``None`` if the process is gone."""
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def name_of(pid: int | None) -> str:
    """Return the first 15 bytes of a process's name, which is all the kernel keeps; empty if it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    return ""


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; empty if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    # Split after the last parenthesis: the name may contain spaces and parentheses (proc(5)).
    return text.rpartition(")")[2].split()


def all_processes() -> dict[int, list[str]]:
    """Return state, parent and process group of every process by process ID, as in proc(5)."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return {pid: fields[:3] for pid in pids if (fields := _stat(pid))}


def descendants(root: int) -> list[int]:
    """Return the process IDs of all descendants of ``root``."""
    children: dict[int, list[int]] = {}
    for pid, (_, parent, _) in all_processes().items():
        children.setdefault(int(parent), []).append(pid)
    pids, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        pids += below
        todo += below
    return pids


def stopped_descendants(root: int) -> dict[int, str]:
    """Return the names of the descendants of ``root`` that a signal has stopped (SIGSTOP), by process ID."""
    stopped = (pid for pid in descendants(root) if state_of(pid) == "T")
    return {pid: name for pid in stopped if (name := name_of(pid))}


def kill_descendants(timeout_s: float = 5.0) -> None:
    """Kill and reap all descendants of this process."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        left = descendants(os.getpid())
        if not left:
            return
        send(left, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


def end_of(code: int) -> str:
    """Return how a process ended, in words; bash and ``srun`` report signal 9 as exit code 137."""
    number = -code if code < 0 else code - 128
    return f"was killed by signal {number}" if number > 0 else f"ended with exit code {code}"


def on_signals(handler: Callable[[str], None]) -> None:
    """Call ``handler`` with the signal's name on SIGTERM, SIGINT and SIGHUP."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: handler(signal.Signals(received).name))


def run_tasks(program: Sequence[str], ntasks: int, output: str) -> int:
    """Run ``ntasks`` copies of a program on this machine, as srun does on a cluster.

    Return the first non-zero exit code. Each task gets its rank as ``TRTLLM_HPC_PROCID``; the rank replaces
    ``%t`` in ``output``, the path of its log. A task that fails ends the others.
    """
    signals: list[str] = []
    on_signals(signals.append)
    adopt_orphans()
    try:
        tasks = []
        for rank in range(ntasks):
            environment = dict(os.environ, TRTLLM_HPC_PROCID=str(rank), TRTLLM_HPC_NTASKS=str(ntasks))
            tasks.append(start_bound(program, environment, Path(output.replace("%t", str(rank)))))
    except OSError as error:
        print(f"error: {program[0]} cannot be started: {error.strerror}.", file=sys.stderr)
        return 127
    failure = 0
    deadline: float | None = None
    # any() gets a list, not a generator, because poll() must be called for every task.
    parent = os.getppid()
    while any([task.poll() is None for task in tasks]):
        if os.getppid() != parent:
            signals.append("SIGTERM")  # the process that started this one was killed
        codes = [task.returncode for task in tasks if task.returncode]
        failure = failure or next(iter(codes), 0)
        if deadline is None and (failure or signals):
            deadline = time.monotonic() + _TASKS_GRACE_S
            for task in tasks:
                if task.poll() is None:
                    task.terminate()
        if deadline is not None and time.monotonic() > deadline:
            break
        time.sleep(0.05)
    failure = failure or next((task.returncode for task in tasks if task.returncode), 0)
    kill_descendants()
    if signals and not failure:
        return 143
    return failure if failure >= 0 else 128 - failure
