"""The options of ``trtllm-hpc bench run``: one for each setting of ``companion.benchmark``.

:mod:`trtllm_hpc.cli.bench_settings` applies them to the settings of the run's job file.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trtllm_hpc.cli.options import valid_text

if TYPE_CHECKING:
    _ListParameter = click.ParamType[list[Any]]
else:
    _ListParameter = click.ParamType  # generic only in the newest releases of click

Command = TypeVar("Command", bound=Callable[..., Any])

_RANGE = re.compile(r"\s*\[[^\[]*x[<>=][^\[]*\]$")
"""Click's note on the range of a number, which would clutter the help of 20 options."""
_GIVEN = f"{__name__}.given"


@dataclass(frozen=True)
class _Setting:
    field: str
    """The dotted field of ``Benchmark``; ``no_`` and the field if the option unsets it."""
    option: str
    attributes: dict[str, Any]
    """Arguments of ``click.option``."""

    @property
    def parameter(self) -> str:
        """The name of click's parameter."""
        return self.field.replace(".", "__")


def _setting(field: str, option: str, text: str | None = None, **attributes: Any) -> _Setting:
    return _Setting(field, option, {"help": text, **attributes})


class _Listed(_ListParameter):
    """One value, or several separated by commas."""

    name = "list"

    def __init__(self, item: Any) -> None:
        self._item = item

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[Any]:
        """Convert each value; click's usage error names the wrong one."""
        if isinstance(value, list):
            return value
        return [self._item.convert(part.strip(), param, ctx) for part in str(value).split(",")]


def _count(least: int, most: int) -> dict[str, Any]:
    return {"type": click.IntRange(least, most), "metavar": "N"}


_COUNT = _count(1, 1_000_000)
_TOKENS = _count(1, 10_000_000)
_STDEV = {"type": click.FloatRange(0, 1_000_000), "metavar": "N"}
_SECONDS = {"type": click.FloatRange(0, 31_536_000), "metavar": "SECONDS"}
_SHARE = {"type": click.FloatRange(0, 1), "metavar": "SHARE"}
_RATE = click.FloatRange(min=0, min_open=True, max=100_000)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path, resolve_path=True)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path, resolve_path=True)
_KINDS = click.Choice(["prompts", "dataset", "normal", "histogram", "shared-prefix", "trace"])
_ARRIVALS = click.Choice(["constant", "poisson", "gamma", "trace"])

_LOAD = (
    _setting(
        "rate_per_second",
        "--rate",
        "Open loop: requests per second, sent whether or not earlier ones are answered. Several: a sweep.",
        type=_Listed(_RATE),
        metavar="RATE[,...]",
    ),
    _setting(
        "concurrency",
        "--concurrency",
        "Closed loop instead: N requests in flight; each answer makes room for the next request.",
        type=_Listed(click.IntRange(1, 100_000)),
        metavar="N[,...]",
    ),
    _setting("arrival", "--arrival", "Distribution of the gaps of an open loop.", type=_ARRIVALS),
    _setting(
        "burstiness",
        "--burstiness",
        "Shape of gamma gaps: 1 is Poisson, less comes in bursts.",
        type=click.FloatRange(min=0, min_open=True, max=1000),
        metavar="SHAPE",
    ),
    _setting(
        "ramp_to_per_second",
        "--ramp-to",
        "Change the rate evenly from --rate to this one.",
        type=_RATE,
        metavar="RATE",
    ),
    _setting("requests", "--requests", "Measured requests of each level.", **_COUNT),
    _setting("duration_seconds", "--duration", "Length of each level instead.", **_SECONDS),
    _setting(
        "warmup_requests",
        "--warmup",
        "Requests of the same load before each level; recorded, but not counted.",
        **_count(0, 1_000_000),
    ),
    _setting("warmup_seconds", "--warmup-seconds", "Length of the warm-up instead.", **_SECONDS),
    _setting(
        "processes",
        "--processes",
        "Client processes that share the load, if one core is not enough.",
        **_count(1, 256),
    ),
    _setting(
        "repeats",
        "--repeats",
        "Passes over each level; from 2 on, figures have confidence intervals.",
        **_count(1, 1000),
    ),
)
_WORKLOAD = (
    _setting("workload.kind", "--workload", "Source of prompts and lengths.", type=_KINDS),
    _setting("workload.prompts", "--prompt", "A prompt; can be repeated.", multiple=True, metavar="TEXT"),
    _setting("workload.path", "--file", "The dataset, histogram or trace.", type=_FILE),
    _setting("workload.speed", "--speed", "Replay a trace this many times faster.", type=_RATE),
    _setting("workload.input_tokens", "--input-tokens", "Mean length of a prompt.", **_TOKENS),
    _setting(
        "workload.input_tokens_stdev", "--input-stdev", "Standard deviation of the prompt length.", **_STDEV
    ),
    _setting("workload.output_tokens", "--output-tokens", "Mean length of an answer.", **_TOKENS),
    _setting(
        "workload.output_tokens_stdev", "--output-stdev", "Standard deviation of the answer length.", **_STDEV
    ),
    _setting("workload.prefix_tokens", "--prefix-tokens", "Length of a shared prefix.", **_TOKENS),
    _setting("workload.prefixes", "--prefixes", "Number of different prefixes, used in turn.", **_TOKENS),
    _setting("workload.max_input_tokens", "--max-input-tokens", "Leave out longer prompts.", **_TOKENS),
    _setting("workload.tokenizer", "--tokenizer", "Folder with tokenizer.json.", type=_FOLDER),
    _setting(
        "workload.lora",
        "--lora",
        "A LoRA adapter of the requests, and its share; can be repeated. Those without a share, and the "
        "requests without an adapter, get equal parts.",
        multiple=True,
        metavar="FOLDER[=SHARE]",
    ),
    _setting(
        "workload.no_lora", "--no-lora", "No adapters, not even the job file's.", is_flag=True, default=None
    ),
    _setting("max_tokens", "--max-tokens", "Maximum output tokens of a request.", **_TOKENS),
    _setting(
        "exact_output",
        "--exact-output/--no-exact-output",
        "Whether answers must have exactly that many tokens.",
        default=None,
    ),
    _setting("seed", "--seed", "Seed of prompts and arrivals.", type=click.IntRange(0, 2**31 - 1)),
)
_REQUESTS = (
    _setting(
        "model",
        "--model",
        "E.g. ensemble, tensorrt_llm_bls, tensorrt_llm; copies of one model are used in turn.",
        type=_Listed(click.STRING),
        metavar="NAME[,...]",
    ),
    _setting(
        "protocol",
        "--protocol",
        "Triton's gRPC or HTTP, or OpenAI's completions or chat; by default gRPC where the server is "
        "Triton, else completions.",
        type=click.Choice(["grpc", "http", "openai", "openai-chat"]),
    ),
    _setting("streaming", "--streaming/--no-streaming", "Whether to request streamed answers.", default=None),
    _setting("request_timeout_seconds", "--timeout-seconds", "Timeout of each request.", **_SECONDS),
)
_VALIDITY = (
    _setting(
        "slo", "--slo", "Limits such as 'ttft.p99<500ms,tpot.p99<50ms'; needed for goodput.", metavar="LIMITS"
    ),
    _setting("no_slo", "--no-slo", "No limits, not even the job file's.", is_flag=True, default=None),
    _setting(
        "find_max", "--find-max/--no-find-max", "Find the highest rate at which --slo holds.", default=None
    ),
    _setting(
        "max_error_share",
        "--max-error-share",
        "Figures are invalid if a larger share of requests failed.",
        **_SHARE,
    ),
    _setting(
        "max_failures_in_a_row",
        "--max-failures-in-a-row",
        "End when so many requests in a row have failed; 0: never.",
        **_count(0, 1_000_000),
    ),
    _setting(
        "max_late_share", "--max-late-share", "Figures are invalid if a larger share was sent late.", **_SHARE
    ),
    _setting(
        "min_requests", "--min-requests", "Figures are invalid if fewer requests were measured.", **_COUNT
    ),
    _setting(
        "min_window_seconds",
        "--min-window-seconds",
        "Figures are invalid if the window was shorter.",
        **_SECONDS,
    ),
)
_SECTIONS = {"Load": _LOAD, "Workload": _WORKLOAD, "Requests": _REQUESTS, "Limits and validity": _VALIDITY}
_SETTINGS = tuple(setting for settings in _SECTIONS.values() for setting in settings)
OPTION_OF = {setting.field: setting.option.partition("/")[0] for setting in _SETTINGS} | {
    "rates_per_second": "--rate",
    "concurrencies": "--concurrency",
    "models": "--model",
}


class SettingsCommand(click.Command):
    """A command whose help groups its many options in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the settings by section, then the other options."""
        options = [it for it in self.get_params(ctx) if isinstance(it, click.Option)]
        records = {option.name: option.get_help_record(ctx) for option in options}
        for title, settings in _SECTIONS.items():
            rows = [records.pop(setting.parameter) for setting in settings]
            with formatter.section(title):
                formatter.write_dl([(row[0], _RANGE.sub("", row[1])) for row in rows if row is not None])
        with formatter.section("Output"):
            formatter.write_dl([row for row in records.values() if row is not None])


def benchmark_options(command: Command) -> Command:
    """Add an option for every setting; :func:`given_settings` returns those that were given."""
    for setting in reversed(_SETTINGS):
        command = click.option(
            setting.option,
            setting.parameter,
            expose_value=False,
            callback=_keeper(setting.field),
            **setting.attributes,
        )(command)
    return command


def _keeper(field: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value is not None and value != ():
            given = valid_text(ctx, param, list(value)) if isinstance(value, tuple) else value
            ctx.meta.setdefault(_GIVEN, {})[field] = str(given) if isinstance(given, Path) else given

    return keep


def given_settings(ctx: click.Context) -> dict[str, Any]:
    """Return the settings given as options, by their dotted fields."""
    return dict(ctx.meta.get(_GIVEN, {}))
