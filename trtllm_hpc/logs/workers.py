"""Reading many logs with several processes, in their order."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from trtllm_hpc.logs.reading import stat_of

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

Result = TypeVar("Result")

_MOST_WORKERS = 8
"""A login node has other users."""
_BYTES_FOR_A_WORKER = 16 << 20
"""Less work than this is done sooner than a process has started."""


def in_order(
    work: Callable[[Path], Iterable[Result]], paths: Sequence[Path]
) -> Iterator[tuple[Path, Result]]:
    """Return what ``work`` yields for each path, in the order of the paths.

    Large amounts are shared out to forked processes, which begin at once; but only if this process has a
    single thread: a fork copies the locks of other threads, and nobody would release them. Each process works
    ahead only as far as its pipe takes results, so that they never fill the memory.
    """
    count = _workers(paths)
    if count < 2:
        return ((path, result) for path in paths for result in work(path))
    # Imported here: it takes longer than reading a few logs.
    import multiprocessing

    fork = multiprocessing.get_context("fork")
    workers: list[tuple[BaseProcess, Connection]] = []
    for number in range(count):
        receiver, sender = fork.Pipe(duplex=False)
        worker = fork.Process(target=_work, args=(work, paths[number::count], sender), daemon=True)
        worker.start()
        sender.close()
        workers.append((worker, receiver))
    return _collected(work, paths, workers)


def _collected(
    work: Callable[[Path], Iterable[Result]],
    paths: Sequence[Path],
    workers: Sequence[tuple[BaseProcess, Connection]],
) -> Iterator[tuple[Path, Result]]:
    try:
        for number, path in enumerate(paths):
            _, receiver = workers[number % len(workers)]
            yield from ((path, result) for result in _received(receiver, work, path))
    finally:
        for worker, receiver in workers:
            receiver.close()
            worker.terminate()
        for worker, _ in workers:
            worker.join()


def _workers(paths: Sequence[Path]) -> int:
    """Return the number of processes that are worth while; 1: this one alone."""
    try:
        if len(list(Path("/proc/self/task").iterdir())) > 1:
            return 1
    except OSError:  # not Linux
        return 1
    size = sum(stat.st_size for path in paths if (stat := stat_of(path)) is not None)
    return min(_MOST_WORKERS, len(os.sched_getaffinity(0)), len(paths), size // _BYTES_FOR_A_WORKER)


def _work(work: Callable[[Path], Iterable[Result]], paths: Sequence[Path], sender: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    try:
        for path in paths:
            for message in chain(([result] for result in work(path)), ([],)):
                sender.send(message)
    except BrokenPipeError:  # the reader has seen enough
        return


def _received(pipe: Connection, work: Callable[[Path], Iterable[Result]], path: Path) -> Iterator[Result]:
    """Yield the results of one path; what a process that was killed has not sent is done here."""
    received = 0
    try:
        while message := pipe.recv():
            received += 1
            yield message[0]
    except EOFError:
        yield from (result for number, result in enumerate(work(path)) if number >= received)
