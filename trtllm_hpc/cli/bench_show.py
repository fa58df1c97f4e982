"""``trtllm-hpc bench show``: print a measurement again as table or JSON."""

from __future__ import annotations

from typing import Any

import click

from trtllm_hpc.api.measurement import Measurement
from trtllm_hpc.cli.measurements import MeasurementType
from trtllm_hpc.cli.options import json_option, runs_option


@click.command("show")
@runs_option
@click.argument("found", type=MeasurementType(), default="latest", metavar="[RUN[:NAME]]")
@json_option
def command(found: Measurement, runs: Any, as_json: bool) -> None:
    """Print the saved measurement NAME of RUN.

    The default is the companion's measurement, else the newest of the run.
    'trtllm-hpc bench list' lists the names. A file results/NAME.json works as well.

    \b
    Examples:
      trtllm-hpc bench show latest
      trtllm-hpc bench show latest:rate-8 --json
    """
    show_measurement(found, as_json=as_json)


def show_measurement(found: Measurement, *, as_json: bool) -> None:
    """Print a measurement in the requested form."""
    if as_json:
        _ = found.summary  # raises if it is incomplete
        click.echo(found.files.summary.read_text(encoding="utf-8").rstrip())
    else:
        from trtllm_hpc.report.measurement_table import print_measurement

        print_measurement(found.summary, found.records)
