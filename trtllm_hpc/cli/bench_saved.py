"""Saved measurements: ``trtllm-hpc bench list``, ``show`` and ``compare``, and ``trtllm-hpc report``."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from trtllm_hpc.api.measurement import Measurement, measured_folder
from trtllm_hpc.api.run import Run
from trtllm_hpc.cli.listing import print_listing
from trtllm_hpc.cli.options import (
    OUTPUT_FILE,
    complete_run,
    complete_with,
    json_option,
    print_json,
    runs_folder,
    runs_option,
)
from trtllm_hpc.errors import RunNotFound
from trtllm_hpc.paths import RunPaths, call_name
from trtllm_hpc.report.formatting import NONE, format_time
from trtllm_hpc.runs.find import find_run, list_runs


def _folder(ctx: click.Context, param: click.Parameter, value: str) -> RunPaths:
    """Callback of a run, or of the folder of ``bench --url --output``; raises RunNotFound."""
    return measured_folder(value, runs_folder(ctx))


def _found(ctx: click.Context, param: click.Parameter, value: str) -> Measurement:
    """Callback of ``RUN``, its newest measurement that has finished, or ``RUN:NAME``, or a file."""
    return Measurement.find(value, runs_folder(ctx))


def _names(ctx: click.Context) -> list[str]:
    """Return the measurements of known runs."""
    runs = {run.run_id: run for run in list_runs(runs_folder(ctx))}
    with suppress(RunNotFound):
        runs = {"latest": find_run("latest", runs_folder(ctx)), **runs}
    return [f"{call}:{name}" for call, run in runs.items() for name in run.measurements()]


_complete_names = complete_with(_names)
_found_argument = click.argument(
    "found", default="latest", metavar="[RUN[:NAME]]", callback=_found, shell_complete=_complete_names
)


@dataclass(frozen=True)
class MeasurementRow:
    """One measurement of a run."""

    name: str
    """Its name for ``bench show RUN:NAME``."""
    levels: tuple[str, ...] = ()
    """Levels of load, e.g. ``8/s`` or ``32 at once``; empty for one that has not finished."""
    valid: bool | None = None
    """Whether the figures may be used; ``None``: it has not finished."""
    requests: int | None = None
    """Measured requests of all levels and passes."""
    started_at: float | None = None
    """Seconds since the epoch."""


@click.command("list")
@runs_option
@click.argument("run", default="latest", metavar="[RUN]", callback=_folder, shell_complete=complete_run)
@json_option
def list_command(run: RunPaths, runs: Any, as_json: bool) -> None:
    """List the measurements of RUN, or of the folder of 'bench --url', the newest first.

    \b
    Example:
      trtllm-hpc bench list latest
    """
    print_listing(
        [_row(found) for found in Measurement.list(Run(run))],
        {
            "name": lambda row: row.name,
            "started": lambda row: format_time(row.started_at),
            "load": lambda row: ", ".join(row.levels) or NONE,
            "requests": lambda row: NONE if row.requests is None else str(row.requests),
            "valid": lambda row: {True: "yes", False: "no", None: "not finished"}[row.valid],
        },
        as_json=as_json,
        empty=f"Run {run.run_id} has no measurement yet.\n  next: trtllm-hpc bench {call_name(run)}",
        right=("requests",),
    )


def _row(found: Measurement) -> MeasurementRow:
    try:
        summary = found.summary
    except RunNotFound:
        return MeasurementRow(found.name)
    labels = tuple(it.level.label for it in summary.levels)
    requests = sum(it.measured for it in summary.levels)
    return MeasurementRow(found.name, labels, summary.valid, requests, summary.started_at)


@click.command("show")
@runs_option
@_found_argument
@json_option
def show_command(found: Measurement, runs: Any, as_json: bool) -> None:
    """Print the saved measurement NAME of RUN.

    The default is the newest measurement of the run that has finished.
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

        print_measurement(found.summary)


@click.command("compare")
@runs_option
@click.argument("a", metavar="A", callback=_found, shell_complete=_complete_names)
@click.argument("b", metavar="B", callback=_found, shell_complete=_complete_names)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    default=0.05,
    show_default=True,
    metavar="SHARE",
    help="How far a figure of B may be from that of A, as a share of A's.",
)
@click.option(
    "--allow-different-workload",
    is_flag=True,
    help="Judge B even if its prompts, lengths or arrivals differ from A's.",
)
@json_option
def compare_command(
    a: Measurement,
    b: Measurement,
    runs: Any,
    tolerance: float,
    allow_different_workload: bool,
    as_json: bool,
) -> None:
    """Compare measurement B with A, figure by figure, at the levels of load that both have.

    A and B are RUN, RUN:NAME or a file results/NAME.json. The exit code is 10
    if B is worse than A in any figure, by more than the tolerance and by more
    than chance. It is 2 if the two had different workloads: their figures are
    shown but not judged. A single pass decides nothing, because its spread is
    unknown: measure both with --repeats 5.

    \b
    Examples:
      trtllm-hpc bench compare latest:before latest:after
      trtllm-hpc bench compare yesterday/results/sweep.json latest:sweep --tolerance 0.1
    """
    from trtllm_hpc.bench.analysis.compare import Side, compare, raise_if_worse

    first, second = (Side(found.call_name, found.summary) for found in (a, b))
    comparison = compare(first, second, tolerance, allow_different_workload=allow_different_workload)
    if as_json:
        print_json(comparison)
    else:
        from trtllm_hpc.report.measurement_table import print_comparison

        print_comparison(comparison)
    raise_if_worse(comparison, tolerance)


@click.command("report")
@runs_option
@_found_argument
@click.option(
    "--output",
    type=OUTPUT_FILE,
    metavar="FILE",
    help="Write the report here.  [default: report.html of the run, or results/NAME.html]",
)
def report_command(found: Measurement, runs: Any, output: Path | None) -> None:
    """Write the report of a measurement: one HTML file that opens without a network.

    Without NAME it is the run's newest measurement that has finished;
    'trtllm-hpc bench list' lists the names. Needs the extra 'report'.

    \b
    Examples:
      trtllm-hpc report latest
      trtllm-hpc report latest:sweep --output sweep.html
    """
    click.echo(found.report(output))
