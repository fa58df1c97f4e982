"""``trtllm-hpc bench [run]``: measure the served model of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click import BOOL, FLOAT, INT, STRING, Choice

from trtllm_hpc.cli.bench_saved import show_measurement
from trtllm_hpc.cli.options import (
    ParameterType,
    Span,
    json_option,
    optional_run,
    runs_folder,
    runs_option,
    section_option,
    section_settings,
    terminating_as_interrupt,
    url_options,
)
from trtllm_hpc.errors import ConfigError
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runs.find import find_run, is_run

if TYPE_CHECKING:
    from trtllm_hpc.api.measurement import Measurement
    from trtllm_hpc.client.connect import Address
    from trtllm_hpc.config.benchmark import Benchmark
    from trtllm_hpc.config.job import JobFile


class _Listed(ParameterType):
    """One value, or several separated by commas."""

    name = "list"

    def __init__(self, item: Any) -> None:
        self._item = item

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[Any]:
        """Convert each value; click's usage error names the wrong one."""
        if isinstance(value, list):
            return value
        return [self._item.convert(part.strip(), param, ctx) for part in str(value).split(",")]


_FILE = click.Path(exists=True, dir_okay=False, resolve_path=True)
_FOLDER = click.Path(exists=True, file_okay=False, resolve_path=True)
_WORKLOADS = Choice(["prompts", "dataset", "normal", "shared-prefix", "trace", "conversations"])
_SETTINGS: tuple[tuple[str, str, Any, str, str], ...] = (
    (
        *("rate_per_second", "--rate", _Listed(FLOAT), "RATE[,...]"),
        "Open loop: requests per second, sent even if earlier ones are not answered. Several: a sweep.",
    ),
    (
        *("concurrency", "--concurrency", _Listed(INT), "N[,...]"),
        "Closed loop instead: N requests, or conversations, at once.",
    ),
    (
        *("arrival", "--arrival", Choice(["constant", "poisson", "gamma", "trace"]), ""),
        "Distribution of the gaps of an open loop.",
    ),
    ("requests", "--requests", INT, "N", "Measured requests, or conversations, of each level."),
    ("duration_seconds", "--duration", Span(1), "SECONDS", "Length of each level instead."),
    (
        *("warmup_requests", "--warmup", INT, "N"),
        "The same load before each level; recorded, not counted.",
    ),
    (
        *("repeats", "--repeats", INT, "N"),
        "Passes over each level; from 2 on, figures have confidence intervals.",
    ),
    ("workload.kind", "--workload", _WORKLOADS, "", "Source of prompts and lengths."),
    ("workload.path", "--file", _FILE, "FILE", "The dataset, trace or conversations."),
    ("workload.input_tokens", "--input-tokens", INT, "N", "Mean length of a prompt, or of a turn."),
    ("workload.output_tokens", "--output-tokens", INT, "N", "Mean length of an answer."),
    ("workload.tokenizer", "--tokenizer", _FOLDER, "FOLDER", "Folder with tokenizer.json."),
    ("max_tokens", "--max-tokens", INT, "N", "Maximum output tokens of a request."),
    ("exact_output", "--exact-output", BOOL, "", "Answers must have exactly that many tokens."),
    ("model", "--model", STRING, "NAME", "E.g. ensemble, tensorrt_llm, or what an OpenAI server serves."),
    (
        *("protocol", "--protocol", Choice(["grpc", "http", "openai", "openai-chat"]), ""),
        "Triton's gRPC or HTTP, or OpenAI's completions or chat; by default gRPC where the server is Triton, "
        "else completions, and chat for conversations.",
    ),
    ("streaming", "--streaming/--no-streaming", BOOL, "", "Whether to request streamed answers."),
    (
        *("slo", "--slo", STRING, "LIMITS"),
        "Limits such as 'ttft.p99<500ms,tpot.p99<50ms'; needed for goodput.",
    ),
    ("find_max", "--find-max", BOOL, "", "Find the highest rate at which --slo holds."),
)
"""Field of ``companion.benchmark``, option, type, metavar and help. The other fields go by ``--set``."""
_OPTION_OF = {field: option.partition("/")[0] for field, option, *_ in _SETTINGS} | {
    "rates_per_second": "--rate",
    "concurrencies": "--concurrency",
}


def _parameter(field: str, option: str, kind: Any, metavar: str, help: str) -> click.Option:
    return click.Option(
        [option, field.replace(".", "__")],
        type=kind,
        is_flag=kind is BOOL,
        metavar=metavar or None,
        default=None,
        help=help,
    )


def given_settings(options: Mapping[str, Any], settings: tuple[str, ...]) -> dict[str, Any]:
    """Return the settings given as options and as ``--set``, by their dotted fields."""
    given = section_settings(settings)
    for several in ("rate_per_second", "concurrency"):
        if several in given and not isinstance(given[several], list):
            given[several] = [given[several]]
    for field, *_ in _SETTINGS:
        value = options.get(field.replace(".", "__"))
        if value is not None:
            given[field] = value
    return given


def settings_for(job: JobFile | None, given: Mapping[str, Any]) -> Benchmark:
    """Return the settings of the job file with those given as options; without a run, these alone.

    Raises click.UsageError with every conflict between them, everything without effect, and every length that
    the engine cannot take, by the option's name.
    """
    from trtllm_hpc.config.benchmark import Benchmark
    from trtllm_hpc.validation.benchmark_settings import refuse_over_limits, settings_of

    def named(field: str) -> str:
        return _OPTION_OF.get(field, field)

    base = None if job is None else job.companion.benchmark
    try:
        settings = settings_of(base or Benchmark(), given, named)
        if job is not None:
            refuse_over_limits(job, settings, named)
    except ConfigError as error:
        lines = (
            f"{problem.field}: {problem.message}{f'; {problem.hint}' if problem.hint else ''}."
            for problem in error.diagnostics
        )
        raise click.UsageError("\n".join(lines)) from None
    return settings


@click.command("run", params=[_parameter(*row) for row in _SETTINGS])
@section_option("companion.benchmark", "burstiness=0.5")
@runs_option
@optional_run
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
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    run: RunPaths | None,
    runs: Any,
    settings: tuple[str, ...],
    address: Address | None,
    output: Path | None,
    name: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure the served model of RUN, or of any --url; see 'trtllm-hpc bench --help'.

    \b
    Examples:
      trtllm-hpc bench latest --requests 100 --rate 8 --save-as rate-8
      trtllm-hpc bench latest --rate 2 --workload conversations --set workload.turns=6
      trtllm-hpc bench --url http://node7:8000/v1 --output measured --concurrency 8
    """
    from trtllm_hpc.api.measurement import Measurement, NameRefused, bench, bench_url
    from trtllm_hpc.api.run import Run
    from trtllm_hpc.bench.measure import MeasurementInterrupted
    from trtllm_hpc.bench.progress import terminal_progress

    if address is not None and run is not None:
        raise click.UsageError(f"Measure the run {run.run_id} or --url, not both.")
    if (address is None) != (output is None):
        raise click.UsageError("--url and --output FOLDER go together: without a run the folder keeps them.")
    found = Run(run or find_run("latest", runs_folder(ctx))) if address is None else None
    base = settings_for(None if found is None else found.job, given_settings(options, settings))
    interrupted = False
    try:
        with terminating_as_interrupt(), terminal_progress() as show:
            common: dict[str, Any] = {"name": name, "base": base, "on_progress": show}
            if found is not None:
                measurement = bench(found, **common)
            else:
                assert address is not None and output is not None
                common |= {"key_file": address.key_file, "certificate": address.certificate_file}
                measurement = bench_url(address.url, output, **common)
    except MeasurementInterrupted as early:
        paths = found.paths if found is not None else RunPaths(output or Path())
        measurement, interrupted = Measurement(paths, early.measurement.name), True
    except NameRefused as error:
        raise click.BadParameter(error.diagnostics[0].message, param_hint="'--save-as'") from None
    _write_report(measurement)
    show_measurement(measurement, as_json=as_json)
    if interrupted:
        raise click.Abort
    measurement.check()


def _write_report(found: Measurement) -> None:
    """Write the report, and print which files the measurement has."""
    files = found.files
    click.echo(f"written: {files.summary} and, beside it, {files.requests.name}", err=True)
    click.echo(f"written: {files.table}", err=True)
    try:
        click.echo(f"written: {found.report()}", err=True)
    except Exception as error:  # noqa: BLE001 - the figures are there, whatever a library refuses
        click.echo(f"no report: {error}\n  then: trtllm-hpc report {found.call_name}", err=True)
    if not is_run(found.paths.folder):
        click.echo(f"again: trtllm-hpc bench show {found.call_name}", err=True)
