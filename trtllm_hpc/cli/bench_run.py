"""``trtllm-hpc bench [run]``: measure the served model of a run."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtllm_hpc.cli.bench_options import OPTION_OF, SettingsCommand, benchmark_options, given_settings
from trtllm_hpc.cli.bench_settings import settings_of
from trtllm_hpc.cli.bench_show import show, upstream_options, write_trace
from trtllm_hpc.cli.measurements import StoredMeasurement
from trtllm_hpc.cli.options import json_option, run_argument, terminating_as_interrupt, wait_option
from trtllm_hpc.errors import InvalidMeasurement, TrtllmHpcError
from trtllm_hpc.paths import COMPANION_MEASUREMENT, RESERVED_ENDINGS, RunPaths, call_name, write_text

if TYPE_CHECKING:
    from trtllm_hpc.bench.results import Measurement
    from trtllm_hpc.config.benchmark import Benchmark
    from trtllm_hpc.config.job import JobFile

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TAKEN = ("progress", "request")
"""Names of other files in the results folder."""


def _valid_name(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    if not _NAME.fullmatch(value):
        raise click.BadParameter(
            f"{value!r} must be letters, digits, '.', '_' and '-', a letter or digit first, 100 at most."
        )
    if value in _TAKEN or value.endswith(RESERVED_ENDINGS):
        raise click.BadParameter(f"results/{value}.json is another file's name; choose another one.")
    return value


@click.command("run", cls=SettingsCommand)
@run_argument
@benchmark_options
@wait_option
@click.option(
    "--save-as",
    "name",
    callback=_valid_name,
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
    from trtllm_hpc.bench.measure import Interrupted, Subject, run_measurement
    from trtllm_hpc.config.benchmark import Benchmark
    from trtllm_hpc.config.files import read_spec
    from trtllm_hpc.runs.endpoint import endpoint_of

    job = read_spec(run.spec)
    settings = settings_of(job.companion.benchmark or Benchmark(), given_settings(ctx))
    problems = engine_limit_problems(job, settings)
    if problems:
        raise click.UsageError("\n".join(problems))
    found = StoredMeasurement(run, _new_name(run, name))
    subject = Subject(run, endpoint_of(run, wait_seconds), job)
    interrupted = False
    try:
        with terminating_as_interrupt():
            measurement = run_measurement(subject, settings, found.name)
    except Interrupted as early:
        measurement, interrupted = early.measurement, True
    _write(found, report=report, perfetto=perfetto)
    show(found, as_json=as_json, upstream_table=upstream_table, upstream_csv=upstream_csv)
    if interrupted:
        raise click.Abort
    raise_if_invalid(found, measurement)


def engine_limit_problems(job: JobFile, settings: Benchmark) -> list[str]:
    """Return a message for each length, and each LoRA adapter, that the run's engine does not take."""
    from trtllm_hpc.validation.job_rules import answers_fit, prompts_fit
    from trtllm_hpc.validation.lora_rules import adapters_fit, adapters_keep_their_numbers

    companion = job.companion.model_copy(update={"enabled": True, "benchmark": settings})
    prefix = "companion.benchmark."
    with_settings = job.model_copy(update={"companion": companion})
    rules = (answers_fit, prompts_fit, adapters_fit, adapters_keep_their_numbers)
    problems = [problem for rule in rules for problem in rule(with_settings)]
    return [
        f"{OPTION_OF[problem.field.removeprefix(prefix)]}: {problem.message}; {problem.hint}."
        for problem in problems
        if problem.field.startswith(prefix)
    ]


def raise_if_invalid(found: StoredMeasurement, measurement: Measurement) -> None:
    """Raise InvalidMeasurement with the findings and the most frequent error if the figures are not valid."""
    if measurement.verdict.valid:
        return
    from trtllm_hpc.report.formatting import cut

    message = " ".join(measurement.verdict.findings)
    if measurement.errors:
        error, count = max(measurement.errors.items(), key=lambda item: item[1])
        message += f" Most frequent error ({count} times): {cut(error)}"
    raise InvalidMeasurement(message, hint=_hint(found, measurement))


def _hint(found: StoredMeasurement, measurement: Measurement) -> str:
    """Return the next step, by what failed most often."""
    from trtllm_hpc.bench.analysis.validity import SERVER_GONE, requests_without_server

    run, failed = call_name(found.run), [one for one in found.records() if one.measured and not one.ok]
    if SERVER_GONE in measurement.verdict.findings or requests_without_server(found.records()):
        return f"trtllm-hpc status {run}"
    if not failed:
        return f"trtllm-hpc bench show {found.call_name}"
    if 2 * sum(one.status == "DEADLINE_EXCEEDED" for one in failed) > len(failed):
        limit = measurement.settings.get("request_timeout_seconds")
        return f"raise --timeout-seconds (now {limit}), or request a lower rate or shorter answers"
    return f"trtllm-hpc logs {run} --rank 0"


def _new_name(run: RunPaths, name: str | None) -> str:
    """Return a name that overwrites nothing; only the companion's may be replaced."""
    if name is None:
        name = time.strftime("bench-%Y%m%d-%H%M%S")
    present = run.measurement(name).present
    if present and name != COMPANION_MEASUREMENT:
        raise click.BadParameter(
            f"run {run.run_id} already has a measurement called {name!r} ({present[0]}). "
            "Choose another name, or leave the option out: the default is the current time.",
            param_hint="'--save-as'",
        )
    return name


def _write(found: StoredMeasurement, *, report: bool, perfetto: bool) -> None:
    """Write the table, the report and the trace."""
    from trtllm_hpc.report.measurement_table import measurement_text

    files = found.files
    write_text(files.table, measurement_text(found.summary(), found.records()))
    written = [files.table]
    if perfetto:
        written.append(write_trace(found))
    if report:
        written += _report(found)
    click.echo(f"written: {files.summary} and, beside it, {files.requests.name}", err=True)
    for file in written:
        click.echo(f"written: {file}", err=True)


def _report(found: StoredMeasurement) -> list[Path]:
    """Write the report; if that fails, only print why, because the measurement is complete without it."""
    from trtllm_hpc.report.html.page import write_report

    try:
        write_report(found.run, found.name, found.files.report)
    except TrtllmHpcError as error:
        click.echo(f"no report: {error}\n  then: trtllm-hpc report {found.call_name}", err=True)
        return []
    return [found.files.report]
