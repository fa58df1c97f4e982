"""``trtllm-hpc bench [run]``: measure the served model of a run, with an option for each setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from trtllm_hpc.cli.bench_saved import show_measurement
from trtllm_hpc.cli.options import (
    EXISTING_FILE,
    EXISTING_FOLDER,
    Command,
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
from trtllm_hpc.errors import ConfigError, InvalidMeasurement
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runs.find import find_run, is_run

if TYPE_CHECKING:
    from trtllm_hpc.api.measurement import Measurement
    from trtllm_hpc.api.run import Run
    from trtllm_hpc.client.connect import Address
    from trtllm_hpc.config.benchmark import Benchmark
    from trtllm_hpc.config.job import JobFile

_GIVEN = f"{__name__}.given"


class _Setting(NamedTuple):
    field: str
    """The dotted field of ``Benchmark``; ``no_`` and the field if the option unsets it."""
    metavar: str | None
    """The values that the option takes; ``None``: it is a flag."""
    help: str
    named: str | None = None
    """The option, where it has another name than the field."""

    @property
    def parameter(self) -> str:
        """The name of click's parameter."""
        return self.field.replace(".", "__")

    @property
    def option(self) -> str:
        """The option, with its dashes."""
        return self.named or f"--{self.field.rpartition('.')[2].replace('_', '-')}"

    def declared(self) -> Callable[[Command], Command]:
        """Return the decorator that adds the option. The range of a number is checked with all settings."""
        option, metavar = self.option, self.metavar
        kind: Any = None
        if metavar is None:
            option += "" if option.startswith("--no-") else f"/--no-{option[2:]}"
        elif "|" in metavar:
            kind, metavar = click.Choice(metavar.split("|")), None
        else:
            word, is_list, _ = metavar.partition("[,...]")
            kind = _TYPES.get(word, click.STRING)
            kind = _Listed(kind) if is_list else kind
        return click.option(
            option,
            self.parameter,
            type=kind,
            metavar=metavar,
            is_flag=self.metavar is None,
            default=None,
            multiple=self.field in ("workload.prompts", "workload.lora"),
            help=self.help,
            expose_value=False,
            callback=_keeper(self.field),
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


_TYPES: Mapping[str, Any] = {
    "N": click.INT,
    **dict.fromkeys(("RATE", "SHAPE", "FACTOR", "SHARE", "TOKENS", "TURNS"), click.FLOAT),
    "SECONDS": Time(1),
    "FILE": EXISTING_FILE,
    "FOLDER": EXISTING_FOLDER,
}
"""Types by metavar; of all others it is text."""
_SECTIONS: Mapping[str, tuple[_Setting, ...]] = {
    "Load": (
        _Setting(
            "rate_per_second",
            "RATE[,...]",
            "Open loop: requests per second, sent even if earlier ones are not answered. Several: a sweep.",
            "--rate",
        ),
        _Setting("concurrency", "N[,...]", "Closed loop instead: N requests, or conversations, at once."),
        _Setting("arrival", "constant|poisson|gamma|trace", "Distribution of the gaps of an open loop."),
        _Setting("burstiness", "SHAPE", "Shape of gamma gaps: 1 is Poisson, less comes in bursts."),
        _Setting("ramp_to_per_second", "RATE", "Change the rate evenly to this one.", "--ramp-to"),
        _Setting("requests", "N", "Measured requests, or conversations, of each level."),
        _Setting("duration_seconds", "SECONDS", "Length of each level instead.", "--duration"),
        _Setting(
            "warmup_requests", "N", "The same load before each level; recorded, not counted.", "--warmup"
        ),
        _Setting("warmup_seconds", "SECONDS", "Length of the warm-up instead."),
        _Setting("processes", "N", "Client processes that share the load, if one core is not enough."),
        _Setting("repeats", "N", "Passes over each level; from 2 on, figures have confidence intervals."),
    ),
    "Workload": (
        _Setting(
            "workload.kind",
            "prompts|dataset|normal|shared-prefix|trace|conversations",
            "Source of prompts and lengths.",
            "--workload",
        ),
        _Setting("workload.prompts", "TEXT", "A prompt; can be repeated.", "--prompt"),
        _Setting("workload.path", "FILE", "The dataset, trace or conversations.", "--file"),
        _Setting("workload.speed", "FACTOR", "Replay a trace this many times faster."),
        _Setting("workload.turns", "N", "Mean number of turns of a conversation."),
        _Setting("workload.turns_stdev", "TURNS", "Standard deviation of that number."),
        _Setting("workload.think_seconds", "SECONDS", "Mean time from answer to next turn.", "--think-time"),
        _Setting("workload.think_seconds_stdev", "SECONDS", "Its standard deviation.", "--think-stdev"),
        _Setting(
            "workload.session",
            "header|user|none",
            "How a turn names its conversation: x-session-id, OpenAI's user.",
        ),
        _Setting("workload.input_tokens", "N", "Mean length of a prompt, or of a turn."),
        _Setting(
            "workload.input_tokens_stdev",
            "TOKENS",
            "Standard deviation of the prompt length.",
            "--input-stdev",
        ),
        _Setting("workload.output_tokens", "N", "Mean length of an answer."),
        _Setting(
            "workload.output_tokens_stdev",
            "TOKENS",
            "Standard deviation of the answer length.",
            "--output-stdev",
        ),
        _Setting("workload.prefix_tokens", "N", "Length of a shared prefix, or system prompt."),
        _Setting("workload.prefixes", "N", "Number of different prefixes, used in turn."),
        _Setting("workload.max_input_tokens", "N", "Leave out longer prompts; cut drawn lengths to it."),
        _Setting("workload.tokenizer", "FOLDER", "Folder with tokenizer.json."),
        _Setting(
            "workload.lora",
            "FOLDER[=SHARE]",
            "A LoRA adapter of the requests, and its share; can be repeated. Adapters without a share, "
            "and the requests without an adapter, get equal parts.",
        ),
        _Setting("workload.no_lora", None, "No adapters, not even the job file's."),
        _Setting("max_tokens", "N", "Maximum output tokens of a request."),
        _Setting("exact_output", None, "Whether answers must have exactly that many tokens."),
        _Setting("seed", "N", "Seed of prompts and arrivals."),
    ),
    "Requests": (
        _Setting("model", "NAME[,...]", "E.g. ensemble, tensorrt_llm; copies of one model are used in turn."),
        _Setting(
            "protocol",
            "grpc|http|openai|openai-chat",
            "Triton's gRPC or HTTP, or OpenAI's completions or chat; by default gRPC where the server "
            "is Triton, else completions, and chat for conversations.",
        ),
        _Setting("streaming", None, "Whether to request streamed answers."),
        _Setting("request_timeout_seconds", "SECONDS", "Timeout of each request.", "--timeout-seconds"),
    ),
    "Limits and validity": (
        _Setting("slo", "LIMITS", "Limits such as 'ttft.p99<500ms,tpot.p99<50ms'; needed for goodput."),
        _Setting("no_slo", None, "No limits, not even the job file's."),
        _Setting("find_max", None, "Find the highest rate at which --slo holds."),
        _Setting("check", None, "Check first that 64 requests at once garble no answers."),
        _Setting("max_error_share", "SHARE", "Figures are invalid if a larger share of requests failed."),
        _Setting("max_failures_in_a_row", "N", "End when so many requests in a row have failed; 0: never."),
        _Setting("max_late_share", "SHARE", "Figures are invalid if a larger share was sent late."),
        _Setting("min_requests", "N", "Figures are invalid if fewer requests were measured."),
        _Setting("min_window_seconds", "SECONDS", "Figures are invalid if the window was shorter."),
    ),
}
_SETTINGS = tuple(setting for settings in _SECTIONS.values() for setting in settings)
_OPTION_OF = {setting.field: setting.option for setting in _SETTINGS} | {
    "rates_per_second": "--rate",
    "concurrencies": "--concurrency",
    "models": "--model",
}


class SettingsCommand(click.Command):
    """A command whose help groups its many options in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the settings by section, then the other options."""
        options = [parameter for parameter in self.get_params(ctx) if isinstance(parameter, click.Option)]
        records = {option.name: option.get_help_record(ctx) for option in options}
        for title, settings in _SECTIONS.items():
            rows = [records.pop(setting.parameter) for setting in settings]
            with formatter.section(title):
                formatter.write_dl([row for row in rows if row is not None])
        with formatter.section("Output"):
            formatter.write_dl([row for row in records.values() if row is not None])


def benchmark_options(command: Command) -> Command:
    """Add an option for every setting; :func:`given_settings` returns those that were given."""
    for setting in reversed(_SETTINGS):
        command = setting.declared()(command)
    return command


def _keeper(field: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value is not None and value != ():
            given = valid_text(ctx, param, list(value)) if isinstance(value, tuple) else value
            given = str(given.resolve()) if isinstance(given, Path) else given
            ctx.meta.setdefault(_GIVEN, {})[field] = given

    return keep


def given_settings(ctx: click.Context) -> dict[str, Any]:
    """Return the settings given as options, by their dotted fields."""
    return dict(ctx.meta.get(_GIVEN, {}))


def settings_for(job: JobFile | None, given: Mapping[str, Any]) -> Benchmark:
    """Return the settings of the job file with those given as options; without a run, these alone.

    Raises click.UsageError with every conflict between them, everything without effect, and every length that
    the engine cannot take, by the option's name.
    """
    from trtllm_hpc.config.benchmark import Benchmark
    from trtllm_hpc.validation.benchmark_settings import refuse_over_limits, settings_of

    base = None if job is None else job.companion.benchmark
    try:
        settings = settings_of(base or Benchmark(), given, _option)
        if job is not None:
            refuse_over_limits(job, settings, _option)
    except ConfigError as error:
        lines = (
            f"{problem.field}: {problem.message}{f'; {problem.hint}' if problem.hint else ''}."
            for problem in error.diagnostics
        )
        raise click.UsageError("\n".join(lines)) from None
    return settings


def _option(field: str) -> str:
    return _OPTION_OF.get(field, field)


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
@click.option(
    "--profile",
    type=click.Choice(["nsys", "torch"]),
    help="Profile the server, which must have been started with serve.profile.",
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
    profile: str | None,
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
    if profile is not None:
        _refuse_unprofiled(found, profile)
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


def _refuse_unprofiled(run: Run | None, tool: str) -> None:
    """Raise InvalidMeasurement for a server that was not started for the profiler."""
    if run is None:
        raise click.UsageError("--profile needs a run, whose server is started for the profiler.")
    if run.job.serve.profile is None or run.job.serve.profile.tool != tool:
        hint = f"trtllm-hpc submit {run.paths.spec} --set serve.profile.tool={tool}"
        raise InvalidMeasurement(f"The server of {run.paths.run_id} was not started for {tool}.", hint=hint)


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
    except Exception as error:  # noqa: BLE001 - the figures are there, whatever a library refuses
        click.echo(f"no report: {error}\n  then: trtllm-hpc report {found.call_name}", err=True)
        return []
