"""Live progress of a run: a redrawn table on a terminal, otherwise a line for each change."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trtllm_hpc.logs.reading import escaped
from trtllm_hpc.report.status import stage_times
from trtllm_hpc.runs.watch import joined

if TYPE_CHECKING:
    from trtllm_hpc.runs.watch import RunProgress


_PAUSE_S = 10.0
"""Shortest time between two lines about an unchanged state, or from the log, outside a terminal."""
_SILENCE_S = 600.0
"""Print a line for a stage without news at least this often, so that elapsed times stay current."""


@contextmanager
def live_printer() -> Iterator[Callable[[RunProgress], None]]:
    """Yield a function that shows a run's progress.

    On a terminal it redraws a small table with the last lines of the log. Otherwise (log, pipe) it prints a
    line when a stage's state changes, and less often when details or the log change.
    """
    console = Console(stderr=True, emoji=False)
    if not console.is_terminal:
        yield _line_printer(console)
        return
    with Live(console=console, transient=True) as live:

        def redraw(progress: RunProgress) -> None:
            table = Table.grid(padding=(0, 2))
            for name, _, words, times in _stages(progress):
                table.add_row(Text(name, style="bold"), Text(words), Text(times, style="dim"))
            if progress.benchmark is not None and progress.benchmark.share is not None:
                table.add_row("", ProgressBar(total=1.0, completed=progress.benchmark.share, width=40))
            lines = (Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in progress.log)
            live.update(Group(table, *lines), refresh=True)

        yield redraw


def _line_printer(console: Console) -> Callable[[RunProgress], None]:
    printed: dict[str, tuple[str, str, float]] = {}
    """Last printed state and words of each stage and of the log, with the time."""

    def show_line(name: str, state: str, words: str, times: str) -> None:
        """Print a new state immediately, other changes after a pause."""
        last_state, last_words, printed_at = printed.get(name, (None, "", 0.0))
        pause_s = _PAUSE_S if words != last_words else _SILENCE_S if times else math.inf
        if state != last_state or time.monotonic() - printed_at > pause_s:
            printed[name] = (state, words, time.monotonic())
            line = f"  {name}: {words}{f' ({times})' if times else ''}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(progress: RunProgress) -> None:
        for stage in _stages(progress):
            show_line(*stage)
        if line := next((line for line in reversed(progress.log) if line.strip()), ""):
            show_line("log", "", line, "")

    return show


def _stages(progress: RunProgress) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, state, the state with its details, and times of each stage."""
    sentences = progress.sentences
    for stage in progress.status.stages:
        state, detail = sentences[stage.stage]
        yield stage.stage, state, escaped(joined(state, detail)), stage_times(stage, progress.at)
