"""The table of a run's stages."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from trtllm_hpc.report.live import stage_times
from trtllm_hpc.report.tables import plain_table
from trtllm_hpc.runs.status import StageStatus
from trtllm_hpc.runs.watch import joined

_STYLES = {"COMPLETED": "green", "RUNNING": "cyan", "PENDING": "yellow", "NOT SUBMITTED": "dim"}


def status_table(stages: Sequence[StageStatus], now: float) -> Table:
    """Return a table with one row for each stage; ``now`` in seconds since the epoch."""
    table = plain_table("stage", "job", "state", "nodes", "what")
    for stage in stages:
        times = stage_times(stage, now)
        words = joined(stage.sentence, str(stage.waiting or ""))
        style = _STYLES.get(stage.state, "red" if stage.final else "")
        table.add_row(
            stage.stage,
            stage.job_id or "-",
            Text(stage.state, style=style),
            Text(stage.nodes or "-"),
            Text(f"{words} ({times})" if times else words),
        )
    return table
