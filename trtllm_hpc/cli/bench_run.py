"""``trtllm-hpc bench [run]``: measure the served model of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtllm_hpc.cli.bench_options import SettingsCommand, benchmark_options, given_settings
from trtllm_hpc.cli.bench_settings import settings_for
from trtllm_hpc.cli.bench_show import show_measurement, upstream_options
from trtllm_hpc.cli.options import json_option, run_argument, terminating_as_interrupt, wait_option
from trtllm_hpc.errors import TrtllmHpcError
from trtllm_hpc.paths import RunPaths

if TYPE_CHECKING:
    from trtllm_hpc.api.measurement import Measurement


@click.command("run", cls=SettingsCommand)
@run_argument
@benchmark_options
@wait_option
@click.option(
    "--save-as",
    "name",
    metavar="NAME",
    help="Write results/NAME.json and the files beside it; NAME must be new. Only the companion's, "
    "'benchmark', may be replaced.  [default: bench-DATE-TIME]",
)
@click.option("--report/--no-report", default=True, help="Whether to write the HTML report.")
@click.option("--perfetto", is_flag=True, help="Also write the requests as a trace for ui.perfetto.dev.")
@upstream_options
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    run: RunPaths,
    runs: Any,
    wait_seconds: float,
    name: str | None,
    report: bool,
    perfetto: bool,
    upstream_table: bool,
    upstream_csv: Path | None,
    as_json: bool,
) -> None:
    """Measure the served model of RUN; see 'trtllm-hpc bench --help'.

    \b
    Example:
      trtllm-hpc bench latest --requests 100 --rate 8 --save-as rate-8
    """
    from trtllm_hpc.api.measurement import Measurement, NameRefused, bench
    from trtllm_hpc.api.run import Run
    from trtllm_hpc.bench.measure import Interrupted
    from trtllm_hpc.bench.progress import terminal_bar

    found = Run(run)
    settings = settings_for(found.job, given_settings(ctx))
    interrupted = False
    try:
        with terminating_as_interrupt(), terminal_bar() as show:
            measurement = bench(found, name=name, base=settings, wait_s=wait_seconds, on_progress=show)
    except Interrupted as early:
        measurement, interrupted = Measurement(run, early.measurement.name), True
    except NameRefused as error:
        raise click.BadParameter(error.diagnostics[0].message, param_hint="'--save-as'") from None
    _write(measurement, report=report, perfetto=perfetto)
    show_measurement(measurement, as_json=as_json, upstream_table=upstream_table, upstream_csv=upstream_csv)
    if interrupted:
        raise click.Abort
    measurement.check()


def _write(found: Measurement, *, report: bool, perfetto: bool) -> None:
    """Write the report and the trace, and print what was written."""
    files = found.files
    written = [files.table]
    if perfetto:
        written.append(found.trace())
    if report:
        written += _report(found)
    click.echo(f"written: {files.summary} and, beside it, {files.requests.name}", err=True)
    for file in written:
        click.echo(f"written: {file}", err=True)


def _report(found: Measurement) -> list[Path]:
    """Write the report; if that fails, only print why, because the measurement is complete without it."""
    try:
        return [found.report()]
    except TrtllmHpcError as error:
        click.echo(f"no report: {error}\n  then: trtllm-hpc report {found.call_name}", err=True)
        return []
