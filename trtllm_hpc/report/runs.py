"""The table of all runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from rich.table import Table
from rich.text import Text

from trtllm_hpc.report.formatting import NONE, format_duration, quantity
from trtllm_hpc.report.tables import plain_table
from trtllm_hpc.runs.listing import ListedRun

OPTIONAL_COLUMNS = ("endpoint", "model", "GPU-h", "waited")
_STYLES = {"completed": "green", "serving": "cyan", "running": "cyan", "pending": "yellow", "rendered": "dim"}


def runs_table(runs: Sequence[ListedRun], now: float) -> Table:
    """Return a table with one row for each run; ``now`` in seconds since the epoch."""
    table = plain_table(
        *("run", "state", "model", "endpoint", "age", "waited", "GPU-h"), right=("age", "waited", "GPU-h")
    )
    for run in runs:
        state = "unknown" if run.state is None else run.state.value
        table.add_row(
            Text(run.run_id),
            Text(state, style=_STYLES.get(state, "red")),
            Text(PurePath(run.model).name if run.model else NONE),
            run.endpoint or NONE,
            format_duration(now - run.created_at),
            NONE if run.waited_s is None else format_duration(run.waited_s),
            quantity(run.gpu_hours, 2),
        )
    return table
