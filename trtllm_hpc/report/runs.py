"""The table of all runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from trtllm_hpc.report.formatting import NONE, format_duration, quantity
from trtllm_hpc.report.tables import Table
from trtllm_hpc.runs.listing import ListedRun


def runs_table(runs: Sequence[ListedRun], now: float) -> Table:
    """Return a table with one row for each run; ``now`` in seconds since the epoch."""
    headers = ("run", "state", "model", "endpoint", "age", "waited", "GPU-h")
    table = Table(
        *headers,
        right=("age", "waited", "GPU-h"),
        one_line=headers,
        optional=("endpoint", "model", "GPU-h", "waited"),
        gap=2,
    )
    for run in runs:
        table.add_row(
            run.run_id,
            "unknown" if run.state is None else run.state.value,
            PurePath(run.model).name if run.model else NONE,
            run.endpoint or NONE,
            format_duration(now - run.created_at),
            NONE if run.waited_s is None else format_duration(run.waited_s),
            quantity(run.gpu_hours, 2),
        )
    return table
