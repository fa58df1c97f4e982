"""Processes that must not outlive their task."""

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
"""From SIGTERM to SIGKILL. Slurm itself gives 30 s in all, unless the site says less."""
_TASKS_GRACE_S = 10.0
"""From the first failure of a task, or a signal, to SIGKILL for the others."""
_LARGEST_REQUEST = 64 << 20
"""Bytes; also the limit of newer Triton releases' HTTP server (``--http-max-input-size``)."""
# Loaded here and not in the child: nothing may be allocated between fork and exec.
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose parent dies (prctl(2))."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def allow_large_requests() -> None:
    """Give the threads of programs that start from now on room on their stacks for a large request.

    Triton's HTTP server (2.51) puts the body of a ``generate`` request on the stack, and dies with a
    segmentation fault where it does not fit: at 8 MB, with the usual limit, or at 2 MB without any, which
    glibc takes for threads then. A stack takes memory only as it is used.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    room = _LARGEST_REQUEST if hard == resource.RLIM_INFINITY else min(_LARGEST_REQUEST, hard)
    if soft == resource.RLIM_INFINITY or soft < room:
        resource.setrlimit(resource.RLIMIT_STACK, (room, hard))


def start_bound(
    command: Sequence[str],
    environment: Mapping[str, str],
    output: int | Path | None = None,
    inherited: Sequence[int] = (),
    *,
    session: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a process that the kernel kills when this one dies in any way.

    It shares this process's output without ``output``, a file descriptor or a log to append to, and gets the
    descriptors ``inherited``. With ``session`` it has its own session and process group.
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
    """Run a program without input to its end; raises OSError or subprocess.TimeoutExpired."""
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
    """Return what a program prints, with its error stream if wanted; ``None`` if it fails or is too slow."""
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
    """Run a command to its end in a process group of its own, and leave nothing of the group behind.

    Once ``stop``, polled meanwhile, is true, the whole group is ended, by SIGKILL if SIGTERM has not done so
    after ``grace_s``. ``output`` as for :func:`start_bound`. Return the exit code; for a signal 128
    and its number, as in the shell.
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
        # What the command left running must not write on: its output is complete now.
        signal_group(child.pid, signal.SIGKILL)
        child.wait()
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Signal processes; one that is gone is left out."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def signal_group(group: int, number: signal.Signals) -> bool:
    """Signal a process group; returns whether it is there, and ours."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


def start_ticks(pid: int) -> int | None:
    """Return a process's start time in clock ticks since boot (proc(5)); ``None`` if it is gone.

    Together with it a process id is unique; alone it may be reused.
    """
    fields = _stat(pid)
    return None if not fields or fields[0] == "Z" else int(fields[19])


def seconds_of(pid: int) -> Iterator[None]:
    """Yield, and sleep for a second, until a process is gone."""
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
    """Return a process's name as the kernel keeps it, its first 15 bytes; nothing if the process is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    return ""


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; none if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    # The name in parentheses may itself contain spaces and parentheses (proc(5)).
    return text.rpartition(")")[2].split()


def all_processes() -> dict[int, list[str]]:
    """Return state, parent and process group of every process, as proc(5) has them, by process id."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return {pid: fields[:3] for pid in pids if (fields := _stat(pid))}


def descendants(root: int) -> list[int]:
    """Return the process ids of all descendants of ``root``."""
    children: dict[int, list[int]] = {}
    for pid, (_, parent, _) in all_processes().items():
        children.setdefault(int(parent), []).append(pid)
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def stopped_descendants(root: int) -> dict[int, str]:
    """Return the names of the descendants of ``root`` that a signal has stopped (SIGSTOP), by process id."""
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
    """Return how a process ended; bash and ``srun`` pass signal 9 on as 137."""
    number = -code if code < 0 else code - 128
    return f"was killed by signal {number}" if number > 0 else f"ended with exit code {code}"


def on_signals(handler: Callable[[str], None]) -> None:
    """Call ``handler`` with the signal's name on SIGTERM, SIGINT and SIGHUP."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: handler(signal.Signals(received).name))


def run_tasks(program: Sequence[str], ntasks: int, output: str) -> int:
    """Run ``ntasks`` copies of a program on this machine, as srun does on a cluster.

    Returns the first non-zero exit code. Each task gets its rank as ``TRTLLM_HPC_PROCID``, which replaces
    ``%t`` in ``output``, its log. A task that fails ends the others.
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
    # A list and not a generator: poll() must be called for every task.
    parent = os.getppid()
    while any([task.poll() is None for task in tasks]):
        if os.getppid() != parent:
            signals.append("SIGTERM")  # who started this was killed
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
