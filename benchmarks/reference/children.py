"""Contenders as child processes: each is idle while another is measured."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.reference.processes import cpu_seconds, peak_memory, process_tree
from benchmarks.reference.workload import BenchmarkFailed, Measure, Outcome, Run, Setup, check

START_LIMIT_S = 600.0
RUN_LIMIT_S = 600.0
END_LIMIT_S = 60.0


@dataclass(frozen=True)
class Task:
    """What a child process runs: a module's ``contend``, or ``prepare`` once."""

    name: str
    module: str
    mode: str = ""


@dataclass(frozen=True)
class Memory:
    """Peaks of a contender, in bytes."""

    resident: int
    """Sum of its processes' VmHWM (proc(5)); pages that several of them map count for each."""
    device: int | None
    """Of tensors on the GPU; unknown for processes that are not ours to ask."""


class Child:
    """One contender's process and its descendants."""

    def __init__(self, task: Task, setup: Setup) -> None:
        self.task = task
        self.log = setup.folder / f"{task.name.replace(' ', '-').replace(',', '')}.log"
        spawn = multiprocessing.get_context("spawn")
        self._ours, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, task, setup, self.log))
        self._process.start()
        theirs.close()

    def wait_ready(self) -> None:
        self.receive(START_LIMIT_S)

    def measure(self, run: Run) -> Outcome:
        self._ours.send(run)
        outcome: Outcome = self.receive(RUN_LIMIT_S)
        return outcome

    def memory(self) -> Memory:
        """Peak memory so far; a server's client is not counted."""
        self._ours.send("device memory")
        device = self.receive(RUN_LIMIT_S)
        pids = process_tree(self._pid)
        return Memory(sum(peak_memory(pid) for pid in (pids[1:] if device is None else pids)), device)

    def cpu_seconds(self) -> float:
        """CPU time of all its running processes, in seconds."""
        return sum(cpu_seconds(pid) for pid in process_tree(self._pid))

    def end(self) -> None:
        """Close the pipe, at which the child exits, and wait for it."""
        self._ours.close()
        self._process.join(END_LIMIT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    @property
    def _pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def receive(self, limit_s: float = START_LIMIT_S) -> Any:
        """The child's next message.

        Raises:
            BenchmarkFailed: no message in time, a message of failure, or the child has exited.
        """
        try:
            if not self._ours.poll(limit_s):
                raise BenchmarkFailed(f"no word in {limit_s:.0f} s\n{self._last_words()}")
            answer = self._ours.recv()
        except (EOFError, ConnectionError) as error:
            raise BenchmarkFailed(f"its process has ended\n{self._last_words()}") from error
        if isinstance(answer, str):
            raise BenchmarkFailed(f"{answer}\n{self._last_words()}")
        return answer

    def _last_words(self) -> str:
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])


@contextmanager
def child(task: Task, setup: Setup) -> Iterator[Child]:
    """A contender that ends with the block."""
    started = Child(task, setup)
    try:
        yield started
    finally:
        started.end()


def _serve(connection: Connection, task: Task, setup: Setup, log: Path) -> None:
    """The child's main function: answer runs until the parent hangs up."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    try:
        module = importlib.import_module(f"benchmarks.reference.{task.module}")
        if task.module == "prepare":
            connection.send(module.prepare(setup))
            return
        with module.contend(setup, task.mode) as measure:
            connection.send(None)
            _answer_runs(connection, setup, measure)
    except EOFError:
        pass
    except Exception as error:  # noqa: BLE001 - whatever it was, the parent prints it and goes on with the others
        traceback.print_exc()
        connection.send(f"{type(error).__name__}: {error}")


def _answer_runs(connection: Connection, setup: Setup, measure: Measure) -> None:
    while True:
        wanted = connection.recv()
        if isinstance(wanted, Run):
            connection.send(check(measure(wanted), setup))
        else:
            connection.send(_device_memory())


def _device_memory() -> int | None:
    """Peak of tensors on the GPU in bytes; ``None`` in a client, which does not import torch."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    return int(torch.cuda.max_memory_allocated()) if torch.cuda.is_available() else 0
