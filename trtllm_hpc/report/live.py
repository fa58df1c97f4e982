"""Live progress of a run: a table redrawn on a terminal, elsewhere a line for each change."""

from __future__ import annotations

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
from trtllm_hpc.scheduler.states import STATES

if TYPE_CHECKING:
    from trtllm_hpc.runs.watch import RunProgress


_DETAIL_PAUSE_S = 3.0
"""Shortest pause between two lines about one stage's details, where lines cannot be redrawn."""
_PLACE_PAUSE_S = 60.0
"""Shortest pause for a stage in the queue, whose place in it may change with each answer of Slurm."""
_TIMES_PAUSE_S = 600.0
"""Print a line for a stage without news at least this often, so that elapsed times stay current."""
_LOG_PAUSE_S = 60.0
"""Shortest pause between two lines of the log; ``trtllm-hpc logs --follow`` prints every line."""


@contextmanager
def live_printer() -> Iterator[Callable[[RunProgress], None]]:
    """Yield a function that shows how far the run is.

    On a terminal a small table is redrawn, with the last lines of the log below it. Elsewhere (a log, a pipe)
    a line is printed when a stage's state changes, and now and then when its details or the log do.
    """
    console = Console(stderr=True, emoji=False)
    if not console.is_terminal:
        yield _LinePrinter(console).show
        return
    with Live(console=console, transient=True) as live:
        yield lambda progress: live.update(_view(progress), refresh=True)


class _LinePrinter:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed: dict[str, tuple[str, str, float]] = {}
        self._log_line, self._log_at = "", -_LOG_PAUSE_S

    def show(self, progress: RunProgress) -> None:
        times = {stage.stage: stage_times(stage, progress.at) for stage in progress.status.stages}
        for stage, (state, detail) in progress.sentences.items():
            if self._is_new(stage, state, detail, times[stage]):
                self._printed[stage] = (state, detail, time.monotonic())
                span = f" ({times[stage]})" if times[stage] else ""
                self._print(f"  {stage}: {escaped(joined(state, detail))}{span}")
        line = next((line for line in reversed(progress.log) if line.strip()), "")
        if line not in ("", self._log_line) and time.monotonic() - self._log_at >= _LOG_PAUSE_S:
            self._log_line, self._log_at = line, time.monotonic()
            self._print(f"  log: {line}")

    def _is_new(self, stage: str, state: str, detail: str, times: str) -> bool:
        last_state, last_detail, printed_at = self._printed.get(stage, (None, "", 0.0))
        waited_s = time.monotonic() - printed_at
        if (last_state, last_detail) == (state, detail):
            return bool(times) and waited_s > _TIMES_PAUSE_S
        pause_s = _PLACE_PAUSE_S if state.startswith(STATES["PENDING"].sentence) else _DETAIL_PAUSE_S
        return last_state != state or waited_s > pause_s

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _view(progress: RunProgress) -> Group:
    """Return the table of the stages, and below it the log's last lines, each cut at the terminal's edge."""
    table = Table.grid(padding=(0, 2))
    stages = {stage.stage: stage for stage in progress.status.stages}
    for name, (state, detail) in progress.sentences.items():
        times = Text(stage_times(stages[name], progress.at), style="dim")
        table.add_row(Text(name, style="bold"), Text(escaped(joined(state, detail))), times)
    if progress.benchmark is not None and progress.benchmark.share is not None:
        table.add_row("", ProgressBar(total=1.0, completed=progress.benchmark.share, width=40))
    lines = (Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in progress.log)
    return Group(table, *lines)
