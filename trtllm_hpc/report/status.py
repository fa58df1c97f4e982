"""The tables of all runs and of the stages of a run, and what the run has used in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from trtllm_hpc.bench.progress import clock_text
from trtllm_hpc.report.formatting import NONE, format_duration, format_time, quantity
from trtllm_hpc.report.tables import Table
from trtllm_hpc.runs.listing import ListedRun
from trtllm_hpc.runs.stages import StageStatus, joined
from trtllm_hpc.runs.status import RunStatus

_STYLES = {"COMPLETED": "green", "RUNNING": "cyan", "PENDING": "yellow", "NOT SUBMITTED": "dim"}


def status_table(stages: Sequence[StageStatus], now: float) -> Table:
    """Return a table with one row for each stage; ``now`` in seconds since the epoch."""
    table = Table("stage", "job", "state", "nodes", "what")
    for stage in stages:
        times = stage_times(stage, now)
        words = joined(stage.sentence, str(stage.waiting or ""))
        style = _STYLES.get(stage.state, "red" if stage.final else "")
        table.add_row(
            stage.stage,
            stage.job_id or "-",
            (stage.state, style),
            stage.nodes or "-",
            f"{words} ({times})" if times else words,
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


def stage_times(stage: StageStatus, now: float) -> str:
    """Return how long a stage waits or runs, and when it may start or end; empty once it has ended."""
    times = stage.times
    if stage.final:
        return ""
    if stage.state == "PENDING":
        waited = "" if times.submitted_at is None else f"waits for {_span(times.submitted_at, now)}"
        start = "" if times.expected_at is None else f"expected to start {format_time(times.expected_at)}"
        return ", ".join(filter(None, (waited, start)))
    elapsed = "" if times.started_at is None else f"for {_span(times.started_at, now)}"
    left = "" if times.ends_by is None else f"{_span(now, times.ends_by)} until its time limit"
    return ", ".join(filter(None, (elapsed, left)))


def _span(since: float, until: float) -> str:
    return clock_text(max(0.0, until - since))


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
