"""The table of all runs: a thousand rows in no time, which rich would draw for more than a second."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from trtllm_hpc.report.formatting import NONE, format_duration, quantity
from trtllm_hpc.runs.listing import ListedRun

_HEADERS = ("run", "state", "model", "endpoint", "age", "waited", "GPU-h")
_RIGHT = ("age", "waited", "GPU-h")
_OPTIONAL = ("waited", "GPU-h", "model", "endpoint")
"""Columns that a narrow terminal does not show; the first goes first."""


def run_lines(runs: Sequence[ListedRun], now: float, width: int | None) -> list[str]:
    """Return the lines of a table with one row for each run, as wide as the terminal, if there is one."""
    cells = zip(*(_cells(run, now) for run in runs), strict=True)
    columns = dict(zip(_HEADERS, cells, strict=True))
    widths = {header: max(len(header), *map(len, column)) for header, column in columns.items()}
    left_out = []
    for header in _OPTIONAL:
        if width is not None and _total(widths) > width:
            left_out.append(header)
            del widths[header]
    padded = [_padded((header, *columns[header]), size) for header, size in widths.items()]
    lines = ["  ".join(row).rstrip() for row in zip(*padded, strict=True)]
    lines.insert(1, "─" * _total(widths))
    if left_out:
        lines.append(f"(no room for: {', '.join(left_out)}; widen the terminal or use --json to see them)")
    return lines


def _total(widths: dict[str, int]) -> int:
    return sum(widths.values()) + 2 * (len(widths) - 1)


def _padded(cells: Sequence[str], width: int) -> list[str]:
    """Return a column's cells, its header first, in one width."""
    return [cell.rjust(width) if cells[0] in _RIGHT else cell.ljust(width) for cell in cells]


def _cells(run: ListedRun, now: float) -> tuple[str, ...]:
    return (
        run.run_id,
        "unknown" if run.state is None else run.state.value,
        PurePath(run.model).name if run.model else NONE,
        run.endpoint or NONE,
        format_duration(now - run.created_at),
        NONE if run.waited_s is None else format_duration(run.waited_s),
        quantity(run.gpu_hours, 2),
    )
