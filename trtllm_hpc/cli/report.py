"""``trtllm-hpc report``: a measurement as one HTML file, and its charts as images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trtllm_hpc.cli.measurements import MeasurementType, StoredMeasurement
from trtllm_hpc.cli.options import OutputFile, runs_option
from trtllm_hpc.errors import RunNotFound


@click.command("report")
@runs_option
@click.argument("found", type=MeasurementType(), default="latest", metavar="[RUN[:NAME]]")
@click.option(
    "--output",
    type=OutputFile(),
    metavar="FILE",
    help="Write the report here.  [default: report.html of the run, or results/NAME.html]",
)
@click.option("--png", is_flag=True, help="Also draw each chart as an image into results/NAME.charts/.")
def command(found: StoredMeasurement, runs: Any, output: Path | None, png: bool) -> None:
    """Write the report of a measurement: one HTML file that opens without a network.

    Without NAME it is the companion's measurement, or else the run's newest;
    'trtllm-hpc bench list' lists the names. Needs the extra: pip install 'trtllm-hpc[report]'.

    \b
    Examples:
      trtllm-hpc report latest
      trtllm-hpc report latest:sweep --png --output sweep.html
    """
    from trtllm_hpc.report.html.page import write_charts, write_report

    if found.copied_to is not None:
        raise RunNotFound(
            f"{found.files.summary} is in no run folder, and a report needs the run's files.",
            hint=f"trtllm-hpc bench show {found.call_name}",
        )
    to = output or found.files.report
    write_report(found.run, found.name, to)
    click.echo(to)
    if png:
        for chart in write_charts(found.run, found.name, found.files.charts):
            click.echo(chart)
