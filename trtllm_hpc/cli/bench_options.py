"""The options of ``trtllm-hpc bench run``: one for each setting of ``companion.benchmark``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from trtllm_hpc.cli.options import EXISTING_FILE, EXISTING_FOLDER, Command, valid_text
from trtllm_hpc.errors import ConfigError

if TYPE_CHECKING:
    from trtllm_hpc.config.benchmark import Benchmark
    from trtllm_hpc.config.job import JobFile

if TYPE_CHECKING:
    _ParameterType = click.ParamType[Any]
else:
    _ParameterType = click.ParamType  # generic only in the newest releases of click
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


class _Listed(_ParameterType):
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
    **dict.fromkeys(("RATE", "SHAPE", "FACTOR", "SECONDS", "SHARE", "TOKENS"), click.FLOAT),
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
        _Setting(
            "concurrency",
            "N[,...]",
            "Closed loop instead: N requests in flight; each answer makes room for the next request.",
        ),
        _Setting("arrival", "constant|poisson|gamma|trace", "Distribution of the gaps of an open loop."),
        _Setting("burstiness", "SHAPE", "Shape of gamma gaps: 1 is Poisson, less comes in bursts."),
        _Setting(
            "ramp_to_per_second", "RATE", "Change the rate evenly from --rate to this one.", "--ramp-to"
        ),
        _Setting("requests", "N", "Measured requests of each level."),
        _Setting("duration_seconds", "SECONDS", "Length of each level instead.", "--duration"),
        _Setting(
            "warmup_requests",
            "N",
            "Requests of the same load before each level; recorded, but not counted.",
            "--warmup",
        ),
        _Setting("warmup_seconds", "SECONDS", "Length of the warm-up instead."),
        _Setting("processes", "N", "Client processes that share the load, if one core is not enough."),
        _Setting("repeats", "N", "Passes over each level; from 2 on, figures have confidence intervals."),
    ),
    "Workload": (
        _Setting(
            "workload.kind",
            "prompts|dataset|normal|histogram|shared-prefix|trace",
            "Source of prompts and lengths.",
            "--workload",
        ),
        _Setting("workload.prompts", "TEXT", "A prompt; can be repeated.", "--prompt"),
        _Setting("workload.path", "FILE", "The dataset, histogram or trace.", "--file"),
        _Setting("workload.speed", "FACTOR", "Replay a trace this many times faster."),
        _Setting("workload.input_tokens", "N", "Mean length of a prompt."),
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
        _Setting("workload.prefix_tokens", "N", "Length of a shared prefix."),
        _Setting("workload.prefixes", "N", "Number of different prefixes, used in turn."),
        _Setting("workload.max_input_tokens", "N", "Leave out longer prompts."),
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
        _Setting(
            "model",
            "NAME[,...]",
            "E.g. ensemble, tensorrt_llm_bls, tensorrt_llm; copies of one model are used in turn.",
        ),
        _Setting(
            "protocol",
            "grpc|http|openai|openai-chat",
            "Triton's gRPC or HTTP, or OpenAI's completions or chat; by default gRPC where the server "
            "is Triton, else completions.",
        ),
        _Setting("streaming", None, "Whether to request streamed answers."),
        _Setting("request_timeout_seconds", "SECONDS", "Timeout of each request.", "--timeout-seconds"),
    ),
    "Limits and validity": (
        _Setting("slo", "LIMITS", "Limits such as 'ttft.p99<500ms,tpot.p99<50ms'; needed for goodput."),
        _Setting("no_slo", None, "No limits, not even the job file's."),
        _Setting("find_max", None, "Find the highest rate at which --slo holds."),
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
