"""How far a running benchmark is: in a file for others, in a bar for a terminal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from trtllm_hpc.paths import write_json

_INTERVAL_S = 0.2


@dataclass
class Progress:
    """Requests answered so far, those with an error among them."""

    of: int
    done: int = 0
    errors: int = 0

    def count(self, ok: bool) -> None:
        """One more request has ended."""
        self.done += 1
        self.errors += not ok


Show = Callable[[Progress], None]


@contextmanager
def reported(progress: Progress, path: Path | None, show: Show | None = None) -> Iterator[None]:
    """While open, write ``progress`` to ``path`` (if any) and pass it to ``show``, every 0.2 s at most.

    A thread does it: a slow shared file system must not hold up the sender.
    """
    ended = threading.Event()

    def report() -> None:
        written = None
        while True:
            over = ended.wait(_INTERVAL_S if written is not None else 0)
            now = asdict(progress)
            if now != written:
                if path is not None:
                    write_json(path, now)
                written = now
                if show is not None:
                    show(progress)
            if over:
                return

    thread = threading.Thread(target=report, name="benchmark progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def terminal_bar(progress: Progress) -> Iterator[Show | None]:
    """A live bar on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("benchmark"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, TextColumn("errors: {task.fields[errors]}"), console=console, transient=True) as bar:
        task = bar.add_task("benchmark", total=progress.of, errors=0)
        yield lambda now: bar.update(task, completed=now.done, errors=now.errors)
