"""``trtllm-hpc bench show``: a measurement again, as table, JSON, upstream's table or trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtllm_hpc.cli.measurements import Found, MeasurementType
from trtllm_hpc.cli.options import OutputFile, json_option, runs_option

if TYPE_CHECKING:
    from trtllm_hpc.bench.records import RequestRecord


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
@click.option("--perfetto", is_flag=True, help="Write the requests as a trace for ui.perfetto.dev.")
@json_option
def command(
    found: Found,
    runs: Any,
    upstream_table: bool,
    upstream_csv: Path | None,
    perfetto: bool,
    as_json: bool,
) -> None:
    """Print a measurement again: that called NAME.

    Without NAME it is the companion's measurement, else the run's newest;
    'trtllm-hpc bench list' tells the names. A file results/NAME.json does, too.

    \b
    Examples:
      trtllm-hpc bench show latest
      trtllm-hpc bench show latest:rate-8 --upstream-table
      trtllm-hpc bench show latest:rate-8 --perfetto
    """
    if perfetto:
        click.echo(f"written: {write_trace(found)}", err=True)
    show(found, as_json=as_json, upstream_table=upstream_table, upstream_csv=upstream_csv)


def show(found: Found, *, as_json: bool, upstream_table: bool, upstream_csv: Path | None) -> None:
    """Print a measurement in the form that was asked for."""
    if upstream_csv is not None:
        from trtllm_hpc.bench.upstream import append_csv

        for _, fields in upstream_passes(found):
            append_csv(upstream_csv, fields)
    if as_json:
        found.summary()  # raises if it is not whole
        click.echo(found.files.summary.read_text(encoding="utf-8").rstrip())
    elif upstream_table:
        from trtllm_hpc.bench.upstream import upstream_table as table

        for label, fields in upstream_passes(found):
            click.echo(f"{label}\n{table(fields)}")
    else:
        from trtllm_hpc.report.measurement_table import print_measurement

        print_measurement(found.summary(), found.records())


def upstream_passes(found: Found) -> list[tuple[str, dict[str, float]]]:
    """Upstream's fields of each pass that the summary knows, with the name of the pass."""
    from trtllm_hpc.bench.upstream import upstream_fields

    passes: dict[tuple[int, int], list[RequestRecord]] = {}
    for record in found.records():
        passes.setdefault((record.level, record.repeat), []).append(record)
    return [
        (f"{result.level.label}, pass {one.repeat + 1}", upstream_fields(passes.get((level, one.repeat), [])))
        for level, result in enumerate(found.summary().levels)
        for one in result.passes
    ]


def write_trace(found: Found) -> Path:
    """Write the requests and the server's metrics as a trace for Perfetto."""
    from trtllm_hpc.bench.server.metrics import read_samples
    from trtllm_hpc.report.perfetto import write_perfetto

    write_perfetto(found.records(), read_samples(found.files.samples), found.files.trace)
    return found.files.trace
