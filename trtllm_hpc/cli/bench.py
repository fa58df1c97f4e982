"""``trtllm-hpc bench`` and ``report``: measure a served model, and report measurements."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click import BOOL, FLOAT, INT, STRING, Choice

from trtllm_hpc.api.measurement import Measurement, NameRefused, bench, bench_url, measured_folder
from trtllm_hpc.api.run import Run
from trtllm_hpc.cli import shared
from trtllm_hpc.cli.shared import print_listing
from trtllm_hpc.errors import ConfigError, RunNotFound
from trtllm_hpc.paths import RunPaths, call_name
from trtllm_hpc.report.formatting import NONE, format_time
from trtllm_hpc.runs.find import find_run, is_run, list_runs

if TYPE_CHECKING:
    from trtllm_hpc.client.connect import Address
    from trtllm_hpc.config.benchmark import Benchmark
    from trtllm_hpc.config.job import JobFile


@click.group("bench", cls=shared.DefaultGroup)
def command() -> None:
    """Measure the served model of RUN, or of any --url, and validate the figures.

    Options override the settings in the run's job file (companion.benchmark). The
    folder results/ of the run gets a record of each request, the workload, the
    server's metrics and a report. The exit code is 10 if the figures are not valid.

    \b
    Examples:
      trtllm-hpc bench latest --requests 100 --rate 8
      trtllm-hpc bench latest --rate 1,2,4,8 --duration 30 --repeats 3 --save-as sweep
      trtllm-hpc bench latest --concurrency 1,8,32 --workload normal --input-tokens 128
      trtllm-hpc bench latest --find-max --slo 'ttft.p99<500ms,tpot.p99<50ms'
      trtllm-hpc bench compare latest:before latest:after
      trtllm-hpc bench --url http://node7:8000/v1 --output measured --rate 4
    """


def _listed(item: Any) -> Callable[[str], list[Any]]:
    """Return a converter of values with commas between; a usage error names the invalid value."""
    return lambda text: [item.convert(part.strip(), None, None) for part in text.split(",")]


def _header(text: str) -> tuple[str, str]:
    """Return name and value. Raises click.BadParameter, which does not quote the text: it can be a secret."""
    name, _, value = (part.strip() for part in text.partition(":"))
    if not (name and value):
        raise click.BadParameter("write a header as 'NAME: VALUE', e.g. 'api-key: KEY'.")
    return name, value


_FILE = click.Path(exists=True, dir_okay=False, resolve_path=True)
_FOLDER = click.Path(exists=True, file_okay=False, resolve_path=True)
_WORKLOADS = Choice(["prompts", "dataset", "normal", "shared-prefix", "trace", "conversations"])
_SETTINGS: tuple[tuple[str, str, Any, str, str], ...] = (
    ("rate_per_second", "--rate", _listed(FLOAT), "RATE[,...]",
     "Open loop: requests per second, whether or not earlier requests are answered. Several: a level each."),
    ("concurrency", "--concurrency", _listed(INT), "N[,...]",
     "Closed loop: N requests, or conversations, in flight."),
    ("arrival", "--arrival", Choice(["constant", "poisson", "gamma", "trace"]), "",
     "Distribution of the gaps between requests of an open loop."),
    ("requests", "--requests", INT, "N", "Number of measured requests, or conversations, at each level."),
    ("duration_seconds", "--duration", shared.Span(1), "SECONDS",
     "Duration of each level, instead of --requests."),
    ("warmup_requests", "--warmup", INT, "N", "Requests before each level that the figures leave out."),
    ("repeats", "--repeats", INT, "N",
     "Passes over each level. Two or more give confidence intervals."),
    ("workload.kind", "--workload", _WORKLOADS, "", "Source of the prompts and their lengths."),
    ("workload.path", "--file", _FILE, "FILE", "Dataset, trace or conversations of --workload."),
    ("workload.input_tokens", "--input-tokens", INT, "N", "Mean tokens of a prompt, or of a turn."),
    ("workload.output_tokens", "--output-tokens", INT, "N", "Mean tokens of an answer."),
    ("workload.tokenizer", "--tokenizer", _FOLDER, "FOLDER", "Folder with tokenizer.json."),
    ("max_tokens", "--max-tokens", INT, "N", "Maximum output tokens of a request."),
    ("exact_output", "--exact-output", BOOL, "", "Make each answer exactly as long as its limit."),
    ("model", "--model", STRING, "NAME", "Model to ask, e.g. ensemble or tensorrt_llm."),
    ("protocol", "--protocol", Choice(["grpc", "http", "openai", "openai-chat"]), "",
     "Triton's gRPC or HTTP, or OpenAI's completions or chat.  [default: chat for conversations, else gRPC "
     "for Triton and completions for other servers]"),
    ("streaming", "--streaming/--no-streaming", BOOL, "", "Stream the answers."),
    ("extra_body", "--extra-body", STRING, "JSON",
     "Further keys of each OpenAI request, e.g. '{\"temperature\": 0}'."),
    ("headers", "--header", _header, "'NAME: VALUE'", "Further header of each request.  [repeatable]"),
    ("slo", "--slo", STRING, "LIMITS",
     "Limits, e.g. 'ttft.p99<500ms,tpot.p99<50ms', which define goodput."),
    ("find_max", "--find-max", BOOL, "", "Find the highest rate that meets --slo."),
)  # fmt: skip
"""Field of ``companion.benchmark``, option, type, metavar and help. ``--set`` sets the other fields."""
_FIRST = (
    *("--rate", "--concurrency", "--requests", "--duration", "--repeats"),
    *("--workload", "--file", "--input-tokens", "--output-tokens", "--slo", "--find-max"),
    *("--url", "--output", "--save-as", "--json"),
)
"""Options in ``--help``; ``--help-all`` shows the others, too."""
_OPTION_OF = {field: option.partition("/")[0] for field, option, *_ in _SETTINGS} | {
    "rates_per_second": "--rate",
    "concurrencies": "--concurrency",
}


def _parameter(field: str, option: str, kind: Any, metavar: str, help: str) -> click.Option:
    names = [option, field.replace(".", "__")]
    common: dict[str, Any] = {"type": kind, "metavar": metavar or None, "help": help, "default": None}
    return click.Option(names, is_flag=kind is BOOL, multiple=kind is _header, **common)


def given_settings(options: Mapping[str, Any], settings: tuple[str, ...]) -> dict[str, Any]:
    """Return the settings given as options and as ``--set``, by their dotted fields."""
    mappings = [f"extra_body={options['extra_body']}"] if options.get("extra_body") else []
    mappings += [f"headers={json.dumps(dict([header]))}" for header in options.get("headers") or ()]
    given = shared.section_settings((*settings, *mappings))
    for several in ("rate_per_second", "concurrency"):
        if several in given and not isinstance(given[several], list):
            given[several] = [given[several]]
    named = {field: options.get(field.replace(".", "__")) for field, *_ in _SETTINGS}
    return {field: value for field, value in named.items() if value not in (None, ())} | given


def settings_for(job: JobFile | None, given: Mapping[str, Any]) -> Benchmark:
    """Return the settings of the job file, if there is a run, overridden by the options.

    Raises click.UsageError with every conflict, every setting without effect, and every length beyond the
    engine's limits, by the option's name.
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
            f"{found.field}: {found.message}{f'; {found.hint}' if found.hint else ''}."
            for found in error.diagnostics
        )
        raise click.UsageError("\n".join(lines)) from None
    return settings


@command.command(
    "run",
    cls=shared.BriefCommand,
    first=_FIRST,
    short_help="Measure. 'run' can be left out.",
    params=[_parameter(*row) for row in _SETTINGS],
)
@shared.section_option("companion.benchmark", "burstiness=0.5")
@shared.runs_option
@shared.optional_run
@shared.url_options(
    "Measure any other server: http:// or https:// for OpenAI's protocol or Triton, grpc:// or grpcs:// for "
    "Triton's gRPC port. Needs --output."
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write the results of --url to FOLDER/results/.",
)
@click.option(
    "--save-as",
    "name",
    metavar="NAME",
    help="Name of the measurement, which must be new.  [default: bench-DATE-TIME]",
)
@shared.json_option
@click.pass_context
def run_command(
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
    """Measure the served model of RUN, or of any --url.

    \b
    Examples:
      trtllm-hpc bench latest --requests 100 --rate 8 --save-as rate-8
      trtllm-hpc bench latest --rate 2 --workload conversations --set workload.turns=6
      trtllm-hpc bench --url http://node7:8000/v1 --output measured --concurrency 8
    """
    from trtllm_hpc.bench.measure import MeasurementInterrupted
    from trtllm_hpc.bench.progress import shown_progress

    if address is not None and run is not None:
        raise click.UsageError(f"Measure the run {run.run_id} or --url, not both.")
    if (address is None) != (output is None):
        raise click.UsageError("--url needs --output FOLDER for the results, and --output needs --url.")
    found = Run(run or find_run("latest", shared.runs_folder(ctx))) if address is None else None
    base = settings_for(None if found is None else found.job, given_settings(options, settings))
    interrupted = False
    try:
        shown = nullcontext() if shared.is_quiet() else shown_progress()
        with shared.terminating_as_interrupt(), shown as show:
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
    files = measurement.files
    shared.print_note(f"written: {files.summary} and, beside it, {files.requests.name}")
    shared.print_note(f"written: {files.table}")
    try:
        shared.print_note(f"written: {measurement.report()}")
    except Exception as error:  # noqa: BLE001 - the figures are valid without a report
        click.echo(f"no report: {error}\n  next: trtllm-hpc report {measurement.call_name}", err=True)
    if not is_run(measurement.paths.folder):
        shared.print_note(f"again: trtllm-hpc bench show {measurement.call_name}")
    show_measurement(measurement, as_json=as_json)
    if interrupted:
        raise click.Abort
    measurement.check()


def _folder(ctx: click.Context, param: click.Parameter, value: str) -> RunPaths:
    """Callback: return a run, or the folder of ``bench --output``. Raises RunNotFound."""
    return measured_folder(value, shared.runs_folder(ctx))


def _found(ctx: click.Context, param: click.Parameter, value: str) -> Measurement:
    """Callback: return the measurement ``RUN:NAME``, the newest finished one of ``RUN``, or a file's."""
    return Measurement.find(value, shared.runs_folder(ctx))


def _names(ctx: click.Context) -> list[str]:
    """Return the names of the measurements of all runs."""
    runs = {run.run_id: run for run in list_runs(shared.runs_folder(ctx))}
    with suppress(RunNotFound):
        runs = {"latest": find_run("latest", shared.runs_folder(ctx)), **runs}
    return [f"{call}:{name}" for call, run in runs.items() for name in run.measurements()]


_complete_names = shared.complete_with(_names)
_found_argument = click.argument(
    "found", default="latest", metavar="[RUN[:NAME]]", callback=_found, shell_complete=_complete_names
)


@dataclass(frozen=True)
class MeasurementRow:
    """One measurement of a run."""

    name: str
    """The NAME of ``bench show RUN:NAME``."""
    levels: tuple[str, ...] = ()
    """Levels of load, e.g. ``8/s`` or ``32 at once``; empty until the measurement has finished."""
    valid: bool | None = None
    """Whether the figures are valid; ``None`` until the measurement has finished."""
    requests: int | None = None
    """Number of measured requests in all levels and passes."""
    started_at: float | None = None
    """Start of the measurement, in seconds since the epoch."""


@command.command("list", short_help="List the measurements of a run.")
@shared.runs_option
@click.argument(
    "run", default="latest", metavar="[RUN]", callback=_folder, shell_complete=shared.complete_run
)
@shared.json_option
def list_command(run: RunPaths, runs: Any, as_json: bool) -> None:
    """List the measurements of RUN, or of a folder of 'bench --output', the newest first.

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
    labels = tuple(result.level.label for result in summary.levels)
    requests = sum(result.measured for result in summary.levels)
    return MeasurementRow(found.name, labels, summary.valid, requests, summary.started_at)


@command.command("show", short_help="Print a saved measurement.")
@shared.runs_option
@_found_argument
@shared.json_option
def show_command(found: Measurement, runs: Any, as_json: bool) -> None:
    """Print the measurement NAME of RUN, or of a file results/NAME.json.

    The default is the newest finished measurement; 'bench list' lists the names.

    \b
    Examples:
      trtllm-hpc bench show latest
      trtllm-hpc bench show latest:rate-8 --json
    """
    show_measurement(found, as_json=as_json)


def show_measurement(found: Measurement, *, as_json: bool) -> None:
    """Print a measurement as a table or as JSON."""
    if as_json:
        _ = found.summary  # raises if the measurement is incomplete
        click.echo(found.files.summary.read_text(encoding="utf-8").rstrip())
    else:
        from trtllm_hpc.report.measurement_table import print_measurement

        print_measurement(found.summary)


@command.command("compare", short_help="Check whether one measurement is worse than another.")
@shared.runs_option
@click.argument("a", metavar="A", callback=_found, shell_complete=_complete_names)
@click.argument("b", metavar="B", callback=_found, shell_complete=_complete_names)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    default=0.05,
    show_default=True,
    metavar="SHARE",
    help="Largest difference of B that does not count, as a share of A's figure.",
)
@click.option(
    "--allow-different-workload",
    is_flag=True,
    help="Compare even if prompts, lengths or arrivals differ.",
)
@shared.json_option
def compare_command(
    a: Measurement, b: Measurement, runs: Any, tolerance: float, allow_different_workload: bool, as_json: bool
) -> None:
    """Compare measurement B with A, figure by figure, at their common levels of load.

    A and B are RUN, RUN:NAME or a file results/NAME.json. Measure both with
    --repeats 5: the spread of a single pass is unknown.

    \b
    Examples:
      trtllm-hpc bench compare latest:before latest:after
      trtllm-hpc bench compare yesterday/results/sweep.json latest:sweep --tolerance 0.1

    Exit codes: 10 if a figure of B is worse by more than the tolerance and by more
    than chance, 2 if the workloads differ.
    """
    from trtllm_hpc.bench.analysis.compare import Side, compare, raise_if_worse

    first, second = (Side(found.call_name, found.summary) for found in (a, b))
    comparison = compare(first, second, tolerance, allow_different_workload=allow_different_workload)
    if as_json:
        shared.print_json(comparison)
    else:
        from trtllm_hpc.report.measurement_table import print_comparison

        print_comparison(comparison)
    raise_if_worse(comparison, tolerance)


@click.command("report")
@shared.runs_option
@_found_argument
@click.option(
    "--output",
    type=shared.OUTPUT_FILE,
    metavar="FILE",
    help="File to write.  [default: report.html of the run, or results/NAME.html]",
)
def report_command(found: Measurement, runs: Any, output: Path | None) -> None:
    """Write the report of a measurement: one HTML file that works without a network.

    The default is the newest finished measurement. Needs the extra 'report'.

    \b
    Examples:
      trtllm-hpc report latest
      trtllm-hpc report latest:sweep --output sweep.html
    """
    click.echo(found.report(output))
