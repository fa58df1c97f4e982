"""``trtllm-hpc report``: a measurement as one HTML file, and its charts as images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trtllm_hpc.api.measurement import Measurement
from trtllm_hpc.cli.measurements import MeasurementType
from trtllm_hpc.cli.options import OutputFile, runs_option


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
def command(found: Measurement, runs: Any, output: Path | None, png: bool) -> None:
    """Write the report of a measurement: one HTML file that opens without a network.

    Without NAME it is the companion's measurement, or else the run's newest;
    'trtllm-hpc bench list' lists the names. Needs the extra: pip install 'trtllm-hpc[report]'.

    \b
    Examples:
      trtllm-hpc report latest
      trtllm-hpc report latest:sweep --png --output sweep.html
    """
    click.echo(found.report(output))
    if png:
        for chart in found.charts():
            click.echo(chart)
