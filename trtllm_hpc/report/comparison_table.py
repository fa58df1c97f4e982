"""Two measurements side by side, for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtllm_hpc.bench.analysis.compare import Comparison, Row
from trtllm_hpc.report.formatting import NONE, quantity, share
from trtllm_hpc.report.tables import plain_table

if TYPE_CHECKING:
    from rich.table import Table


def comparison_table(comparison: Comparison) -> Table:
    """A row for each figure, with what the difference means."""
    from rich.text import Text

    table = plain_table()
    for header in ("level", "figure"):
        table.add_column(header)
    for header in ("A", "B", "change", "95 % of B - A"):
        table.add_column(header, justify="right")
    table.add_column("verdict")
    level = None
    for row in comparison.rows:
        table.add_row(
            row.level if row.level != level else "",
            _name(row),
            _figure(row, row.a),
            _figure(row, row.b),
            NONE if row.change is None else f"{row.change:+.1%}",
            _interval(row),
            Text(verdict(row), style="bold red" if row.regressed else "") if comparison.judged else NONE,
        )
        level = row.level
    return table


def remarks(comparison: Comparison) -> list[str]:
    """What must be known to read the table, a line each."""
    told = [f"A: {comparison.a}", f"B: {comparison.b}"]
    for word, lines in (
        ("not valid", comparison.invalid),
        ("different workload", comparison.workload),
        ("different setting", comparison.settings),
        ("different environment", comparison.environment),
        ("note", comparison.notes),
    ):
        told += [f"{word}: {line}" for line in lines]
    return told


def verdict(row: Row) -> str:
    """One word or three: ``worse``, ``better, by chance?``..."""
    if row.better is None or not row.beyond:
        return "same"
    direction = "better" if row.better else "worse"
    if row.significant is None:
        return f"{direction}, spread unknown"
    return direction if row.significant else f"{direction}, perhaps by chance"


def _name(row: Row) -> str:
    name = row.label if row.statistic is None else f"{row.label} {row.statistic}"
    return name if row.unit == "share" else f"{name} ({row.unit})"


def _figure(row: Row, value: float) -> str:
    return share(value) if row.unit == "share" else quantity(value)


def _interval(row: Row) -> str:
    if row.low is None or row.high is None:
        return NONE
    return f"{_figure(row, row.low)} to {_figure(row, row.high)}"
