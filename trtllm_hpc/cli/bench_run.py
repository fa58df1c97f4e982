"""``trtllm-hpc bench [run]``: measure the served model of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtllm_hpc.cli.bench_options import SettingsCommand, benchmark_options, given_settings, settings_for
from trtllm_hpc.cli.bench_saved import show_measurement
from trtllm_hpc.cli.options import (
    json_option,
    optional_run,
    runs_folder,
    runs_option,
    terminating_as_interrupt,
    url_options,
    wait_option,
)
from trtllm_hpc.errors import TrtllmHpcError
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runs.find import find_run, is_run

if TYPE_CHECKING:
    from trtllm_hpc.api.measurement import Measurement
    from trtllm_hpc.client.connect import Address


@click.command("run", cls=SettingsCommand)
@runs_option
@optional_run
@benchmark_options
@wait_option
@url_options(
    "Measure a server that was not started by this program instead of a run: http:// or https:// for "
    "OpenAI's protocol or Triton, grpc:// or grpcs:// for Triton's gRPC port. Needs --output."
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write the results of --url to FOLDER/results/; 'bench list FOLDER' lists them.",
)
@click.option(
    "--save-as",
    "name",
    metavar="NAME",
    help="Write results/NAME.json and the files beside it; NAME must be new. Only the companion's, "
    "'benchmark', may be replaced.  [default: bench-DATE-TIME]",
)
@click.option("--report/--no-report", default=True, help="Whether to write the HTML report.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    run: RunPaths | None,
    runs: Any,
    wait_seconds: float,
    address: Address | None,
    output: Path | None,
    name: str | None,
    report: bool,
    as_json: bool,
) -> None:
    """Measure the served model of RUN, or of any --url; see 'trtllm-hpc bench --help'.

    \b
    Examples:
      trtllm-hpc bench latest --requests 100 --rate 8 --save-as rate-8
      trtllm-hpc bench --url http://node7:8000/v1 --output measured --concurrency 8
    """
    from trtllm_hpc.api.measurement import Measurement, NameRefused, bench, bench_url
    from trtllm_hpc.api.run import Run
    from trtllm_hpc.bench.measure import Interrupted
    from trtllm_hpc.bench.progress import terminal_bar

    _refuse_contradictions(run, address, output)
    found = Run(run or find_run("latest", runs_folder(ctx))) if address is None else None
    settings = settings_for(None if found is None else found.job, given_settings(ctx))
    interrupted = False
    try:
        with terminating_as_interrupt(), terminal_bar() as show:
            common: dict[str, Any] = {"name": name, "base": settings, "on_progress": show}
            if found is not None:
                measurement = bench(found, wait_s=wait_seconds, **common)
            else:
                assert address is not None and output is not None
                common |= {"key_file": address.key_file, "certificate": address.certificate_file}
                measurement = bench_url(address.url, output, **common)
    except Interrupted as early:
        paths = found.paths if found is not None else RunPaths(output or Path())
        measurement, interrupted = Measurement(paths, early.measurement.name), True
    except NameRefused as error:
        raise click.BadParameter(error.diagnostics[0].message, param_hint="'--save-as'") from None
    _write(measurement, report=report)
    show_measurement(measurement, as_json=as_json)
    if interrupted:
        raise click.Abort
    measurement.check()


def _refuse_contradictions(run: RunPaths | None, address: Address | None, output: Path | None) -> None:
    """Raise UsageError for what does not go together."""
    if address is None and output is not None:
        raise click.UsageError("--output goes with --url; a run keeps its own results.")
    if address is not None and run is not None:
        raise click.UsageError(f"Measure the run {run.run_id} or --url, not both.")
    if address is not None and output is None:
        raise click.UsageError("--url needs --output FOLDER for the results: there is no run to keep them.")


def _write(found: Measurement, *, report: bool) -> None:
    """Write the report, and print which files the measurement has."""
    files = found.files
    written = [files.table, *(_report(found) if report else ())]
    click.echo(f"written: {files.summary} and, beside it, {files.requests.name}", err=True)
    for file in written:
        click.echo(f"written: {file}", err=True)
    if not is_run(found.paths.folder):
        click.echo(f"again: trtllm-hpc bench show {found.call_name}", err=True)


def _report(found: Measurement) -> list[Path]:
    """Write the report; if that fails, only print why, because the measurement is complete without it."""
    try:
        return [found.report()]
    except TrtllmHpcError as error:
        click.echo(f"no report: {error}\n  then: trtllm-hpc report {found.call_name}", err=True)
        return []
