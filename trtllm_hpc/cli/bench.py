"""``trtllm-hpc bench``: measure the served model with an open-loop load."""

from __future__ import annotations

import re
import time
from typing import Any

import click

from trtllm_hpc.cli.client import valid_text
from trtllm_hpc.cli.options import json_option, run_argument
from trtllm_hpc.paths import COMPANION_MEASUREMENT, RunPaths, write_text
from trtllm_hpc.runs import call_name

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TAKEN = ("progress", "request")
"""Names whose files in the results folder hold something else."""


def _valid_name(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    if not _NAME.fullmatch(value):
        raise click.BadParameter(
            f"{value!r} must be letters, digits, '.', '_' and '-', a letter or digit first, 100 at most."
        )
    if value in _TAKEN:
        raise click.BadParameter(f"results/{value}.json is something else; choose another name.")
    return value


@click.command("bench")
@run_argument
@click.option("--requests", type=click.IntRange(min=1), default=20, show_default=True)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    default=4.0,
    show_default=True,
    help="Requests per second, sent whether or not earlier ones are answered.",
)
@click.option("--max-tokens", type=click.IntRange(min=1), default=16, show_default=True)
@click.option(
    "--prompt",
    "prompts",
    multiple=True,
    callback=valid_text,
    help="May be given several times.  [default: eight built-in prompts]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of prompts and arrivals.")
@click.option("--arrival", type=click.Choice(["constant", "poisson"]), default="poisson", show_default=True)
@click.option(
    "--warmup",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="Requests before the measurement; they count nowhere.",
)
@click.option(
    "--timeout-seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="For each request.",
)
@click.option(
    "--wait-seconds",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="How long to wait for the server; 0: it must be ready now.",
)
@click.option("--model", default="ensemble", show_default=True)
@click.option(
    "--save-as",
    "name",
    callback=_valid_name,
    metavar="NAME",
    help="Write results/NAME.json, .jsonl and .txt in the run folder; NAME must be new. 'benchmark' is "
    "reserved for the companion, whose later attempt replaces the earlier.  [default: bench-DATE-TIME]",
)
@json_option
def command(
    run: RunPaths,
    runs: Any,
    requests: int,
    rate: float,
    max_tokens: int,
    prompts: tuple[str, ...],
    seed: int,
    arrival: str,
    warmup: int,
    timeout_seconds: float,
    wait_seconds: float,
    model: str,
    name: str | None,
    as_json: bool,
) -> None:
    """Measure the served model of RUN at a fixed request rate.

    The results are written into the run folder. Ends with exit code 10 if too
    many requests failed for the figures to be used.

    \b
    Examples:
      trtllm-hpc bench latest --requests 100 --rate 8
      trtllm-hpc bench latest --rate 8 --save-as rate-8
    """
    from trtllm_hpc.bench.benchmark import Settings, refuse_invalid, run_benchmark
    from trtllm_hpc.cli.endpoint import endpoint_of
    from trtllm_hpc.report.tables import as_text, benchmark_table, print_benchmark

    name = _new_name(run, name)
    settings = Settings(requests, rate, max_tokens, prompts, seed, arrival, warmup, timeout_seconds, model)
    summary = run_benchmark(run, endpoint_of(run, wait_seconds), settings, name)
    files = run.measurement(name)
    write_text(files.table, as_text(benchmark_table(summary)))
    click.echo(
        f"written: {files.summary}, and beside it {files.requests.name} and {files.table.name}", err=True
    )
    if as_json:
        import json

        click.echo(json.dumps(summary, indent=2, ensure_ascii=False))
    else:
        print_benchmark(summary)
    refuse_invalid(summary, call_name(run))


def _new_name(run: RunPaths, name: str | None) -> str:
    """A name under which nothing is lost; the companion alone may replace its own."""
    if name is None:
        name = time.strftime("bench-%Y%m%d-%H%M%S")
    present = run.measurement(name).present
    if present and name != COMPANION_MEASUREMENT:
        raise click.BadParameter(
            f"run {run.run_id} has a measurement called {name!r} already ({present[0]}). "
            "Choose another name, or leave the option out: the default is the time of day.",
            param_hint="'--save-as'",
        )
    return name
