"""Live progress of a run: a table redrawn on a terminal, elsewhere a line for each change."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trtllm_hpc.runs.watch import joined

if TYPE_CHECKING:
    from trtllm_hpc.runs.watch import Progress


_DETAIL_PAUSE_S = 3.0
"""Shortest pause between two lines about one stage's details, where lines cannot be redrawn."""


class LivePrinter:
    """Prints each progress.

    On a terminal a small table is redrawn. Elsewhere (a log, a pipe) a line is
    printed when a stage's state changes, and now and then when its details do.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True, emoji=False)
        self._live = Live(console=self._console, transient=True) if self._console.is_terminal else None
        self._printed: dict[str, tuple[str, str, float]] = {}

    def __enter__(self) -> LivePrinter:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, progress: Progress) -> None:
        """Show how far the run is."""
        if self._live is not None:
            self._live.update(_table(progress))
            return
        for stage, (state, detail) in progress.sentences.items():
            if self._is_new(stage, state, detail):
                self._printed[stage] = (state, detail, time.monotonic())
                line = f"  {stage}: {joined(state, detail)}"
                self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _is_new(self, stage: str, state: str, detail: str) -> bool:
        last_state, last_detail, printed_at = self._printed.get(stage, (None, "", 0.0))
        if (last_state, last_detail) == (state, detail):
            return False
        return last_state != state or time.monotonic() - printed_at > _DETAIL_PAUSE_S


def _table(progress: Progress) -> Table:
    table = Table.grid(padding=(0, 2))
    for stage, (state, detail) in progress.sentences.items():
        table.add_row(Text(stage, style="bold"), Text(joined(state, detail)))
    if progress.benchmark is not None and progress.benchmark.share is not None:
        table.add_row("", ProgressBar(total=1.0, completed=progress.benchmark.share, width=40))
    return table
