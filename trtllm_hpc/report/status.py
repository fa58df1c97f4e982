"""The table of a run's stages."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

_STYLES = {"COMPLETED": "green", "RUNNING": "cyan", "PENDING": "yellow", "NOT SUBMITTED": "dim"}


def status_table(status: dict[str, Any]) -> Table:
    """One row a stage, from ``RunStatus.as_json()``."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in ("stage", "job", "state"):
        table.add_column(column, no_wrap=True)
    table.add_column("nodes", overflow="fold")
    table.add_column("what")
    for stage in status["stages"]:
        style = _STYLES.get(stage["state"], "red" if stage["final"] else "")
        table.add_row(
            stage["stage"],
            stage["job_id"] or "-",
            Text(stage["state"], style=style),
            Text(stage["nodes"] or "-"),
            Text(stage["sentence"]),
        )
    return table
