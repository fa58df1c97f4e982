"""Telling the progress of a benchmark to others while it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trtllm_hpc.bench.progress import Progress, Snapshot, write_progress

_INTERVAL_S = 0.5
"""Who follows a run reads its files so often. Drawing the bar takes about 1 ms, in which nothing is sent."""

Show = Callable[[Snapshot], None]


@contextmanager
def reported(progress: Progress, path: Path | None, show: Show | None = None) -> Iterator[None]:
    """While open, write ``progress`` to ``path`` and pass it to ``show``, twice a second and at the end.

    A thread does it: a slow shared file system must not hold up the sender.

    Args:
        path: ``None`` writes nothing.
    """
    if path is None and show is None:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(
        target=_report, args=(progress, path, show, ended), name="progress", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _report(progress: Progress, path: Path | None, show: Show | None, ended: threading.Event) -> None:
    over = False
    while not over:
        over = ended.is_set()
        now = progress.snapshot()
        if show is not None:
            show(now)
        if path is not None:
            with suppress(OSError):  # a full disk ends no measurement for the sake of this
                write_progress(path, now)
        ended.wait(_INTERVAL_S)


@contextmanager
def terminal_bar() -> Iterator[Show | None]:
    """A live bar on standard error; ``None`` if that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[amount]}"),
        TextColumn("{task.fields[figures]}"),
    )
    # Drawn by who calls, and by no thread of the library's own.
    with Bar(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=None, visible=False, amount="", figures="")

        def show(now: Snapshot) -> None:
            total = None if now.share is None else 1.0
            bar.update(
                task,
                description=now.step.words,
                total=total,
                completed=now.share or 0.0,
                amount=now.amount,
                figures=now.figures,
                visible=True,
            )
            bar.refresh()

        yield show
