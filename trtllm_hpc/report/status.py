"""The table of a run's stages, and what the run has used in words."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from trtllm_hpc.bench.progress import clock_text
from trtllm_hpc.report.formatting import quantity
from trtllm_hpc.report.live import stage_times
from trtllm_hpc.report.tables import plain_table
from trtllm_hpc.runs.stages import StageStatus
from trtllm_hpc.runs.status import RunStatus
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


def use_sentence(status: RunStatus) -> str:
    """Return what a run has used in words; empty if nothing is known."""
    use = status.use
    hours = [(stage.stage, stage.gpu_hours) for stage in status.stages if stage.gpu_hours is not None]
    parts = []
    if use.gpu_hours is not None:
        by_stage = ", ".join(f"{stage} {quantity(value)}" for stage, value in hours)
        parts.append(f"{quantity(use.gpu_hours)} GPU-hours{f' ({by_stage})' if by_stage else ''}")
    if use.waited_s is not None:
        parts.append(f"{clock_text(use.waited_s)} in the queue")
    if use.energy_j is not None:
        parts.append(f"{quantity(use.energy_j / 3.6e6)} kWh")
    return ", ".join(parts)
