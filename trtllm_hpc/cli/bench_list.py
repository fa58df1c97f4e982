"""``trtllm-hpc bench list``: the measurements of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from trtllm_hpc.api.run import Run
from trtllm_hpc.cli.measurements import MeasuredFolder
from trtllm_hpc.cli.options import json_option, print_json, runs_option
from trtllm_hpc.errors import RunNotFound
from trtllm_hpc.paths import RunPaths, call_name
from trtllm_hpc.report.tables import Table, print_table

if TYPE_CHECKING:
    from trtllm_hpc.api.measurement import Measurement


@dataclass(frozen=True)
class MeasurementRow:
    """One measurement of a run."""

    name: str
    """Its name for ``bench show RUN:NAME``."""
    levels: tuple[str, ...]
    """Levels of load, e.g. ``8/s`` or ``32 at once``; empty for one that has not finished."""
    valid: bool | None
    """Whether the figures may be used; ``None``: it has not finished."""
    requests: int | None
    """Measured requests of all levels and passes."""
    started_at: float | None
    """Seconds since the epoch."""


@click.command("list")
@runs_option
@click.argument("run", type=MeasuredFolder(), default="latest", metavar="[RUN]")
@json_option
def command(run: RunPaths, runs: Any, as_json: bool) -> None:
    """List the measurements of RUN, or of the folder of 'bench --url', the newest first.

    \b
    Example:
      trtllm-hpc bench list latest
    """
    from trtllm_hpc.api.measurement import Measurement

    rows = [_row(found) for found in Measurement.list(Run(run))]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(_table(rows))
    else:
        click.echo(
            f"Run {run.run_id} has no measurement yet.\n  next: trtllm-hpc bench {call_name(run)}", err=True
        )


def _row(found: Measurement) -> MeasurementRow:
    try:
        measurement = found.summary
    except RunNotFound:
        return MeasurementRow(found.name, (), None, None, None)
    return MeasurementRow(
        found.name,
        tuple(result.level.label for result in measurement.levels),
        measurement.valid,
        sum(one.measured for result in measurement.levels for one in result.passes),
        measurement.started_at,
    )


def _table(rows: Sequence[MeasurementRow]) -> Table:
    import time

    table = Table("name", "started", "load", "requests", "valid", right=("requests",))
    for row in rows:
        started = row.started_at
        table.add_row(
            row.name,
            "-" if started is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(started)),
            ", ".join(row.levels) or "-",
            "-" if row.requests is None else str(row.requests),
            {True: "yes", False: "no", None: "not finished"}[row.valid],
        )
    return table
