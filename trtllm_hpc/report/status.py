"""The table of a run's stages."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

_STYLES = {"COMPLETED": "green", "RUNNING": "cyan", "PENDING": "yellow", "NOT SUBMITTED": "dim"}


def status_table(status: dict[str, Any]) -> Table:
    """One row a stage, from ``RunStatus.as_json()``."""
    table = Table(title=Text(status["run_id"]), title_justify="left")
    for column in ("stage", "job", "state", "nodes", "what"):
        table.add_column(column)
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
