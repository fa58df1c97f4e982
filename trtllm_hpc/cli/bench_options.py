"""The options of ``trtllm-hpc bench``: one for each setting of ``companion.benchmark``.

What they make of a run's own settings: :mod:`trtllm_hpc.cli.bench_settings`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trtllm_hpc.cli.options import valid_text

if TYPE_CHECKING:
    _ListParameter = click.ParamType[list[Any]]
else:
    _ListParameter = click.ParamType  # generic only in the newest releases of click

Command = TypeVar("Command", bound=Callable[..., Any])
Setting = tuple[str, tuple[str, ...], dict[str, Any]]
"""A field of ``Benchmark``, dotted, or ``no_`` and the field that is unset; the names of its option; what
click is told of it."""

_RANGE = re.compile(r"\s*\[[^\[]*x[<>=][^\[]*\]$")
"""What click says of the values that a number may have: in 20 options it hides what they are for."""
_GIVEN = f"{__name__}.given"


class Listed(_ListParameter):
    """One value, or several with commas between them."""

    name = "list"

    def __init__(self, item: Any) -> None:
        self._item = item

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[Any]:
        """Convert each value; click's usage error names the one that is wrong."""
        if isinstance(value, list):
            return value
        return [self._item.convert(part.strip(), param, ctx) for part in str(value).split(",")]


_COUNT = click.IntRange(min=1, max=1_000_000)
_TOKENS = {"type": click.IntRange(min=1, max=10_000_000), "metavar": "N"}
_STDEV = {"type": click.FloatRange(min=0, max=1_000_000), "metavar": "N"}
_SECONDS = {"type": click.FloatRange(min=0, max=31_536_000), "metavar": "SECONDS"}
_RATE = click.FloatRange(min=0, min_open=True, max=100_000)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path, resolve_path=True)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path, resolve_path=True)
_KINDS = click.Choice(["prompts", "dataset", "normal", "histogram", "shared-prefix", "trace"])
_ARRIVALS = click.Choice(["constant", "poisson", "gamma", "trace"])

_LOAD: tuple[Setting, ...] = (
    (
        "rate_per_second",
        ("--rate",),
        {
            "type": Listed(_RATE),
            "metavar": "RATE[,...]",
            "help": "Open loop: requests per second, sent whether or not earlier ones are answered. "
            "Several are a sweep.",
        },
    ),
    (
        "concurrency",
        ("--concurrency",),
        {
            "type": Listed(click.IntRange(min=1, max=100_000)),
            "metavar": "N[,...]",
            "help": "Closed loop instead: N requests outstanding; an answer makes room for the next.",
        },
    ),
    ("arrival", ("--arrival",), {"type": _ARRIVALS, "help": "How the gaps of an open loop are spread."}),
    (
        "burstiness",
        ("--burstiness",),
        {
            "type": click.FloatRange(min=0, min_open=True, max=1000),
            "metavar": "SHAPE",
            "help": "Of gamma's gaps: 1 is Poisson, below 1 comes in bursts.",
        },
    ),
    (
        "ramp_to_per_second",
        ("--ramp-to",),
        {"type": _RATE, "metavar": "RATE", "help": "The rate moves evenly from --rate to this one."},
    ),
    ("requests", ("--requests",), {"type": _COUNT, "metavar": "N", "help": "Measured requests of a level."}),
    ("duration_seconds", ("--duration",), {**_SECONDS, "help": "Measure each level for so long instead."}),
    (
        "warmup_requests",
        ("--warmup",),
        {
            "type": click.IntRange(min=0, max=1_000_000),
            "metavar": "N",
            "help": "Requests of the same load before; recorded, but counted nowhere.",
        },
    ),
    (
        "processes",
        ("--processes",),
        {
            "type": click.IntRange(min=1, max=256),
            "metavar": "N",
            "help": "Of the client, which share the load where one core is too little for it.",
        },
    ),
    ("warmup_seconds", ("--warmup-seconds",), {**_SECONDS, "help": "Warm up for so long instead."}),
    (
        "repeats",
        ("--repeats",),
        {
            "type": click.IntRange(min=1, max=1000),
            "metavar": "N",
            "help": "Passes over each level; from 2 on, figures have confidence intervals.",
        },
    ),
)
_WORKLOAD: tuple[Setting, ...] = (
    ("workload.kind", ("--workload",), {"type": _KINDS, "help": "Where prompts and lengths come from."}),
    (
        "workload.prompts",
        ("--prompt",),
        {"multiple": True, "metavar": "TEXT", "help": "A prompt to ask; may be given several times."},
    ),
    ("workload.path", ("--file",), {"type": _FILE, "help": "The dataset, histogram or trace."}),
    ("workload.speed", ("--speed",), {"type": _RATE, "help": "Time of a trace runs so many times faster."}),
    ("workload.input_tokens", ("--input-tokens",), {**_TOKENS, "help": "Mean length of a prompt."}),
    ("workload.input_tokens_stdev", ("--input-stdev",), _STDEV),
    ("workload.output_tokens", ("--output-tokens",), {**_TOKENS, "help": "Mean length of an answer."}),
    ("workload.output_tokens_stdev", ("--output-stdev",), _STDEV),
    ("workload.prefix_tokens", ("--prefix-tokens",), {**_TOKENS, "help": "Length of a shared prefix."}),
    ("workload.prefixes", ("--prefixes",), {**_TOKENS, "help": "How many different ones take turns."}),
    ("workload.max_input_tokens", ("--max-input-tokens",), {**_TOKENS, "help": "Leave longer prompts out."}),
    ("workload.tokenizer", ("--tokenizer",), {"type": _FOLDER, "help": "Folder with tokenizer.json."}),
    ("max_tokens", ("--max-tokens",), {**_TOKENS, "help": "Most output tokens of a request."}),
    (
        "exact_output",
        ("--exact-output/--no-exact-output",),
        {"default": None, "help": "Whether answers must not end before that."},
    ),
    ("seed", ("--seed",), {"type": click.IntRange(0, 2**31 - 1), "help": "Of prompts and arrivals."}),
)
_ASKED: tuple[Setting, ...] = (
    (
        "model",
        ("--model",),
        {
            "type": Listed(click.STRING),
            "metavar": "NAME[,...]",
            "help": "E.g. ensemble, tensorrt_llm_bls, tensorrt_llm; several of a kind take turns.",
        },
    ),
    ("protocol", ("--protocol",), {"type": click.Choice(["grpc", "http"])}),
    (
        "streaming",
        ("--streaming/--no-streaming",),
        {"default": None, "help": "Whether to ask for tokens as they come."},
    ),
    (
        "request_timeout_seconds",
        ("--timeout-seconds",),
        {**_SECONDS, "help": "For each request."},
    ),
)
_VALIDITY: tuple[Setting, ...] = (
    ("slo", ("--slo",), {"metavar": "LIMITS", "help": "E.g. 'ttft.p99<500ms,tpot.p99<50ms': gives goodput."}),
    (
        "no_slo",
        ("--no-slo",),
        {"is_flag": True, "default": None, "help": "No limits, not even the job file's."},
    ),
    (
        "find_max",
        ("--find-max/--no-find-max",),
        {"default": None, "help": "Find the highest rate at which --slo holds."},
    ),
    (
        "max_error_share",
        ("--max-error-share",),
        {"type": click.FloatRange(0, 1), "metavar": "SHARE", "help": "More failures make the run invalid."},
    ),
    (
        "max_late_share",
        ("--max-late-share",),
        {"type": click.FloatRange(0, 1), "metavar": "SHARE", "help": "As do more requests sent late."},
    ),
    ("min_requests", ("--min-requests",), {"type": _COUNT, "metavar": "N", "help": "As do fewer requests."}),
    ("min_window_seconds", ("--min-window-seconds",), {**_SECONDS, "help": "As does a shorter window."}),
)
SETTINGS = _LOAD + _WORKLOAD + _ASKED + _VALIDITY
_SECTIONS = {"Load": _LOAD, "Workload": _WORKLOAD, "Whom to ask": _ASKED, "What counts": _VALIDITY}
OPTION_OF = {field: names[0].partition("/")[0] for field, names, _ in SETTINGS} | {
    "rates_per_second": "--rate",
    "concurrencies": "--concurrency",
    "models": "--model",
}


class SettingsCommand(click.Command):
    """A command whose help sets its many options in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The settings by what they are about, then the rest."""
        options = [it for it in self.get_params(ctx) if isinstance(it, click.Option)]
        records = {option.name: option.get_help_record(ctx) for option in options}
        for title, settings in _SECTIONS.items():
            rows = [records.pop(field.replace(".", "__")) for field, _, _ in settings]
            with formatter.section(title):
                formatter.write_dl([(row[0], _RANGE.sub("", row[1])) for row in rows if row is not None])
        with formatter.section("Output"):
            formatter.write_dl([row for row in records.values() if row is not None])


def benchmark_options(command: Command) -> Command:
    """An option for every setting; :func:`given_settings` tells which were typed."""
    for field, names, told in reversed(SETTINGS):
        parameter = field.replace(".", "__")
        command = click.option(*names, parameter, expose_value=False, callback=_kept(field), **told)(command)
    return command


def _kept(field: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value is not None and value != ():
            given = valid_text(ctx, param, list(value)) if isinstance(value, tuple) else value
            ctx.meta.setdefault(_GIVEN, {})[field] = str(given) if isinstance(given, Path) else given

    return keep


def given_settings(ctx: click.Context) -> dict[str, Any]:
    """Each setting that was typed, by its dotted field."""
    return dict(ctx.meta.get(_GIVEN, {}))
