"""The table of a run's logs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.table import Table
from rich.text import Text

from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.logs.errors import first_error_line
from trtllm_hpc.logs.files import list_logs, stage_of
from trtllm_hpc.logs.reading import escaped
from trtllm_hpc.logs.state import CANCELLED, NEVER_STARTED, NO_RECORD, RUNNING, SILENT
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.report.formatting import format_bytes
from trtllm_hpc.report.tables import NARROW, as_text, plain_table, print_table, terminal_width
from trtllm_hpc.runs.status import StageStatus, run_status

_SHORT_HOST, _LONG_HOST = 12, 24
_LEAST_ERROR = 30
"""Width that an error needs in the table; in a narrower one it is printed below."""
_GAP = 3
_ANY_WIDTH = 2000


@dataclass(frozen=True)
class LogRow:
    """One log of a run."""

    step: str
    """The stage, or the step of one; of several instances ``serve.0`` and so on."""
    rank: int | None
    """``None``: the output of the batch script."""
    host: str | None
    state: str
    """Of the writer: ``running``, ``ended 0``, ``stopped by companion``... in a few words."""
    size_bytes: int | None
    """``None``: the log is not there yet."""
    first_error: str | None
    """The first line that looks like an error."""
    path: str


def log_rows(run: RunPaths) -> list[LogRow]:
    """Return one row for each log of a run.

    Where a stage has not recorded its end itself, its state comes from Slurm,
    if Slurm answers.
    """
    rows = [
        LogRow(
            log.step,
            log.rank,
            log.host,
            log.state,
            log.size_bytes,
            first_error_line(log.path),
            str(log.path),
        )
        for log in list_logs(run)
    ]
    if not any(row.state in (RUNNING, NO_RECORD) for row in rows):
        return rows
    try:
        stages = {stage.stage: stage for stage in run_status(run).stages}
    except SubmissionError:
        return rows
    return [replace(row, state=_state_from_slurm(row, stages.get(stage_of(row.step)))) for row in rows]


def _state_from_slurm(row: LogRow, stage: StageStatus | None) -> str:
    if stage is None:
        return row.state
    of_script = row.rank is None
    if row.state == RUNNING and stage.final:
        return CANCELLED if of_script and stage.state == "CANCELLED" else SILENT
    if row.state == NO_RECORD and of_script:
        return NEVER_STARTED if stage.final else stage.state.lower()
    return row.state


def print_logs(rows: Sequence[LogRow]) -> None:
    """Print the rows of :func:`log_rows`; errors are cut to the width of a terminal, but not in a pipe."""
    width = terminal_width()
    if width is None:
        print_table(log_table(rows))
    else:
        sys.stdout.write(fitted(rows, width))


def fitted(rows: Sequence[LogRow], width: int) -> str:
    """Return the table for a terminal of ``width`` columns; errors without room in it stand below."""
    hosts = _SHORT_HOST if width < NARROW else _LONG_HOST
    bare = log_table(rows, host_width=hosts, error_width=0)
    room = width - max(map(len, as_text(bare, _ANY_WIDTH).splitlines()), default=0) - _GAP
    if room >= _LEAST_ERROR:
        return as_text(log_table(rows, host_width=hosts, error_width=room), width)
    return as_text(bare, width) + "".join(f"{line}\n" for line in _error_lines(rows, width))


def log_table(
    rows: Sequence[LogRow], *, host_width: int | None = None, error_width: int | None = None
) -> Table:
    """Return the rows of :func:`log_rows` as a table.

    Args:
        host_width: host names are cut to this width.
        error_width: errors are cut to this width; 0 leaves them out.
    """
    headers = ("step", "rank", "host", "state", "size", *(() if error_width == 0 else ("first error",)))
    table = plain_table(*headers, right=("rank", "size"), one_line=("size", "first error"))
    for row in rows:
        size = None if row.size_bytes is None else format_bytes(row.size_bytes)
        cells = (row.step, row.rank, row.host, row.state, size)
        step, rank, host, state, size = ("-" if cell is None else str(cell) for cell in cells)
        texts = [step, rank, _cut(host, host_width), state, size]
        if error_width != 0:
            texts.append(_cut(_error(row), error_width))
        table.add_row(*map(Text, texts))
    return table


def _error_lines(rows: Sequence[LogRow], width: int) -> list[str]:
    lines = []
    for row in rows:
        if row.first_error:
            name = row.step if row.rank is None else f"{row.step}[{row.rank}]"
            lines.append(_cut(f"{name}: {_error(row)}", width))
    return ["", "first errors:", *lines] if lines else []


def _cut(text: str, width: int | None) -> str:
    line = Text(text)
    if width is not None:
        line.truncate(width, overflow="ellipsis")
    return line.plain


def _error(row: LogRow) -> str:
    return escaped(row.first_error or "")
