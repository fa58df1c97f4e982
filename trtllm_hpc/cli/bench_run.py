"""``trtllm-hpc bench [run]``: measure the served model of a run, with an option for each setting."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click import BOOL, FLOAT, INT, STRING, Choice
from click.core import ParameterSource

from trtllm_hpc.cli.bench_saved import show_measurement
from trtllm_hpc.cli.options import (
    ParameterType,
    Time,
    json_option,
    optional_run,
    runs_folder,
    runs_option,
    terminating_as_interrupt,
    url_options,
    valid_text,
    wait_option,
)
from trtllm_hpc.errors import ConfigError
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runs.find import find_run, is_run

if TYPE_CHECKING:
    from trtllm_hpc.api.measurement import Measurement
    from trtllm_hpc.client.connect import Address
    from trtllm_hpc.config.benchmark import Benchmark
    from trtllm_hpc.config.job import JobFile


class Setting(click.Option):
    """The option of a setting: of a dotted field of ``Benchmark``, or of ``no_`` and a field that it unsets.

    It is called as the field, unless ``option`` names it. The range of a number is checked with all settings.
    """

    def __init__(
        self,
        field: str,
        metavar: str | None,
        kind: ParameterType,
        help: str,
        option: str = "",
        *,
        multiple: bool = False,
    ) -> None:
        self.field = field
        self.option = option or f"--{field.rpartition('.')[2].replace('_', '-')}"
        is_switch = kind is BOOL and not self.option.startswith("--no-")
        names = [
            f"{self.option}/--no-{self.option[2:]}" if is_switch else self.option,
            field.replace(".", "__"),
        ]
        super().__init__(
            names,
            type=kind,
            metavar=metavar,
            is_flag=kind is BOOL,
            default=None,
            multiple=multiple,
            help=help,
            callback=valid_text if multiple else None,
        )


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
_SECTIONS: Mapping[str, tuple[Setting, ...]] = {
    "Load": (
        Setting(
            "rate_per_second",
            "RATE[,...]",
            _Listed(FLOAT),
            "Open loop: requests per second, sent even if earlier ones are not answered. Several: a sweep.",
            "--rate",
        ),
        Setting(
            "concurrency",
            "N[,...]",
            _Listed(INT),
            "Closed loop instead: N requests, or conversations, at once.",
        ),
        Setting(
            "arrival",
            None,
            Choice(["constant", "poisson", "gamma", "trace"]),
            "Distribution of the gaps of an open loop.",
        ),
        Setting("burstiness", "SHAPE", FLOAT, "Shape of gamma gaps: 1 is Poisson, less comes in bursts."),
        Setting("requests", "N", INT, "Measured requests, or conversations, of each level."),
        Setting("duration_seconds", "SECONDS", Time(1), "Length of each level instead.", "--duration"),
        Setting(
            "warmup_requests", "N", INT, "The same load before each level; recorded, not counted.", "--warmup"
        ),
        Setting("warmup_seconds", "SECONDS", Time(1), "Length of the warm-up instead."),
        Setting("processes", "N", INT, "Client processes that share the load, if one core is not enough."),
        Setting("repeats", "N", INT, "Passes over each level; from 2 on, figures have confidence intervals."),
    ),
    "Workload": (
        Setting(
            "workload.kind",
            None,
            Choice(["prompts", "dataset", "normal", "shared-prefix", "trace", "conversations"]),
            "Source of prompts and lengths.",
            "--workload",
        ),
        Setting("workload.prompts", "TEXT", STRING, "A prompt; can be repeated.", "--prompt", multiple=True),
        Setting("workload.path", "FILE", _FILE, "The dataset, trace or conversations.", "--file"),
        Setting("workload.speed", "FACTOR", FLOAT, "Replay a trace this many times faster."),
        Setting("workload.turns", "N", INT, "Mean number of turns of a conversation."),
        Setting("workload.turns_stdev", "TURNS", FLOAT, "Standard deviation of that number."),
        Setting(
            "workload.think_seconds",
            "SECONDS",
            Time(1),
            "Mean time from answer to next turn.",
            "--think-time",
        ),
        Setting(
            "workload.think_seconds_stdev", "SECONDS", Time(1), "Its standard deviation.", "--think-stdev"
        ),
        Setting("workload.input_tokens", "N", INT, "Mean length of a prompt, or of a turn."),
        Setting(
            "workload.input_tokens_stdev",
            "TOKENS",
            FLOAT,
            "Standard deviation of the prompt length.",
            "--input-stdev",
        ),
        Setting("workload.output_tokens", "N", INT, "Mean length of an answer."),
        Setting(
            "workload.output_tokens_stdev",
            "TOKENS",
            FLOAT,
            "Standard deviation of the answer length.",
            "--output-stdev",
        ),
        Setting("workload.prefix_tokens", "N", INT, "Length of a shared prefix, or system prompt."),
        Setting("workload.prefixes", "N", INT, "Number of different prefixes, used in turn."),
        Setting("workload.max_input_tokens", "N", INT, "Leave out longer prompts; cut drawn lengths to it."),
        Setting("workload.tokenizer", "FOLDER", _FOLDER, "Folder with tokenizer.json."),
        Setting("max_tokens", "N", INT, "Maximum output tokens of a request."),
        Setting("exact_output", None, BOOL, "Whether answers must have exactly that many tokens."),
        Setting("seed", "N", INT, "Seed of prompts and arrivals."),
    ),
    "Requests": (
        Setting("model", "NAME", STRING, "E.g. ensemble, tensorrt_llm, or what an OpenAI server serves."),
        Setting(
            "protocol",
            None,
            Choice(["grpc", "http", "openai", "openai-chat"]),
            "Triton's gRPC or HTTP, or OpenAI's completions or chat; by default gRPC where "
            "the server is Triton, else completions, and chat for conversations.",
        ),
        Setting("streaming", None, BOOL, "Whether to request streamed answers."),
        Setting(
            "request_timeout_seconds", "SECONDS", Time(1), "Timeout of each request.", "--timeout-seconds"
        ),
    ),
    "Limits and validity": (
        Setting(
            "slo", "LIMITS", STRING, "Limits such as 'ttft.p99<500ms,tpot.p99<50ms'; needed for goodput."
        ),
        Setting("no_slo", None, BOOL, "No limits, not even the job file's."),
        Setting("find_max", None, BOOL, "Find the highest rate at which --slo holds."),
        Setting(
            "max_error_share", "SHARE", FLOAT, "Figures are invalid if a larger share of requests failed."
        ),
        Setting(
            "max_failures_in_a_row", "N", INT, "End when so many requests in a row have failed; 0: never."
        ),
        Setting("max_late_share", "SHARE", FLOAT, "Figures are invalid if a larger share was sent late."),
        Setting("min_requests", "N", INT, "Figures are invalid if fewer requests were measured."),
        Setting("min_window_seconds", "SECONDS", Time(1), "Figures are invalid if the window was shorter."),
    ),
}
_SETTINGS = tuple(setting for settings in _SECTIONS.values() for setting in settings)
_OPTION_OF = {setting.field: setting.option for setting in _SETTINGS} | {
    "rates_per_second": "--rate",
    "concurrencies": "--concurrency",
}


class SettingsCommand(click.Command):
    """A command with an option for every setting, in sections of its help; see :func:`given_settings`."""

    def __init__(self, name: str | None, *, params: list[click.Parameter], **attributes: Any) -> None:
        super().__init__(name, params=[*_SETTINGS, *params], **attributes)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the settings by section, then the other options."""
        others = [parameter for parameter in self.get_params(ctx) if parameter not in _SETTINGS]
        for title, options in {**_SECTIONS, "Output": others}.items():
            with formatter.section(title):
                formatter.write_dl([row for it in options if (row := it.get_help_record(ctx)) is not None])


def given_settings(ctx: click.Context) -> dict[str, Any]:
    """Return the settings given as options, by their dotted fields."""
    given = {}
    for it in _SETTINGS:
        assert it.name is not None
        if ctx.get_parameter_source(it.name) is ParameterSource.COMMANDLINE:
            value = ctx.params[it.name]
            given[it.field] = list(value) if it.multiple else value
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


@click.command("run", cls=SettingsCommand)
@runs_option
@optional_run
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
    /,
    run: RunPaths | None,
    runs: Any,
    wait_seconds: float,
    address: Address | None,
    output: Path | None,
    name: str | None,
    report: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Measure the served model of RUN, or of any --url; see 'trtllm-hpc bench --help'.

    \b
    Examples:
      trtllm-hpc bench latest --requests 100 --rate 8 --save-as rate-8
      trtllm-hpc bench --url http://node7:8000/v1 --output measured --concurrency 8
    """
    from trtllm_hpc.api.measurement import Measurement, NameRefused, bench, bench_url
    from trtllm_hpc.api.run import Run
    from trtllm_hpc.bench.measure import MeasurementInterrupted
    from trtllm_hpc.bench.progress import terminal_progress

    if address is None and output is not None:
        raise click.UsageError("--output goes with --url; a run keeps its own results.")
    if address is not None and run is not None:
        raise click.UsageError(f"Measure the run {run.run_id} or --url, not both.")
    if address is not None and output is None:
        raise click.UsageError("--url needs --output FOLDER for the results: there is no run to keep them.")
    found = Run(run or find_run("latest", runs_folder(ctx))) if address is None else None
    base = settings_for(None if found is None else found.job, given_settings(ctx))
    interrupted = False
    try:
        with terminating_as_interrupt(), terminal_progress() as show:
            common: dict[str, Any] = {"name": name, "base": base, "on_progress": show}
            if found is not None:
                measurement = bench(found, wait_s=wait_seconds, **common)
            else:
                assert address is not None and output is not None
                common |= {"key_file": address.key_file, "certificate": address.certificate_file}
                measurement = bench_url(address.url, output, **common)
    except MeasurementInterrupted as early:
        paths = found.paths if found is not None else RunPaths(output or Path())
        measurement, interrupted = Measurement(paths, early.measurement.name), True
    except NameRefused as error:
        raise click.BadParameter(error.diagnostics[0].message, param_hint="'--save-as'") from None
    _write(measurement, report=report)
    show_measurement(measurement, as_json=as_json)
    if interrupted:
        raise click.Abort
    measurement.check()


def _write(found: Measurement, *, report: bool) -> None:
    """Write the report, and print which files the measurement has."""
    files = found.files
    click.echo(f"written: {files.summary} and, beside it, {files.requests.name}", err=True)
    click.echo(f"written: {files.table}", err=True)
    if report:
        try:
            click.echo(f"written: {found.report()}", err=True)
        except Exception as error:  # noqa: BLE001 - the figures are there, whatever a library refuses
            click.echo(f"no report: {error}\n  then: trtllm-hpc report {found.call_name}", err=True)
    if not is_run(found.paths.folder):
        click.echo(f"again: trtllm-hpc bench show {found.call_name}", err=True)
