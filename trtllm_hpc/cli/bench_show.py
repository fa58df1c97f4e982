"""``trtllm-hpc bench show``: print a measurement again as table, JSON or upstream's table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trtllm_hpc.api.measurement import Measurement
from trtllm_hpc.cli.measurements import MeasurementType
from trtllm_hpc.cli.options import OutputFile, json_option, runs_option


def upstream_options(command: Any) -> Any:
    """``--upstream-table`` and ``--upstream-csv FILE``."""
    command = click.option(
        "--upstream-csv",
        type=OutputFile(),
        metavar="FILE",
        help="Add a row to this file, as upstream's --op-stats-csv does.",
    )(command)
    return click.option(
        "--upstream-table", is_flag=True, help="Print upstream's nine figures, by upstream's formulas."
    )(command)


@click.command("show")
@runs_option
@click.argument("found", type=MeasurementType(), default="latest", metavar="[RUN[:NAME]]")
@upstream_options
@json_option
def command(
    found: Measurement,
    runs: Any,
    upstream_table: bool,
    upstream_csv: Path | None,
    as_json: bool,
) -> None:
    """Print the saved measurement NAME of RUN.

    The default is the companion's measurement, else the newest of the run.
    'trtllm-hpc bench list' lists the names. A file results/NAME.json works as well.

    \b
    Examples:
      trtllm-hpc bench show latest
      trtllm-hpc bench show latest:rate-8 --upstream-table
    """
    show_measurement(found, as_json=as_json, upstream_table=upstream_table, upstream_csv=upstream_csv)


def show_measurement(
    found: Measurement, *, as_json: bool, upstream_table: bool, upstream_csv: Path | None
) -> None:
    """Print a measurement in the requested form."""
    if upstream_csv is not None:
        from trtllm_hpc.bench.analysis.upstream_table import append_csv, upstream_passes

        for _, fields in upstream_passes(found.summary, found.records):
            append_csv(upstream_csv, fields)
    if as_json:
        _ = found.summary  # raises if it is incomplete
        click.echo(found.files.summary.read_text(encoding="utf-8").rstrip())
    elif upstream_table:
        from trtllm_hpc.bench.analysis.upstream_table import format_table, upstream_passes

        for label, fields in upstream_passes(found.summary, found.records):
            click.echo(f"{label}\n{format_table(fields)}")
    else:
        from trtllm_hpc.report.measurement_table import print_measurement

        print_measurement(found.summary, found.records)
