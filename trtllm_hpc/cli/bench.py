"""``trtllm-hpc bench``: measure the served model with an open-loop load."""

from __future__ import annotations

from typing import Any

import click

from trtllm_hpc.cli.client import valid_text
from trtllm_hpc.cli.options import json_option, run_argument
from trtllm_hpc.paths import RunPaths, write_text


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
@click.option("--arrival", type=click.Choice(["constant", "poisson"]), default="constant", show_default=True)
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
    as_json: bool,
) -> None:
    """Measure the served model of RUN at a fixed request rate.

    The results are written into the run folder. Ends with exit code 10 if too
    many requests failed for the figures to be used.

    \b
    Example:
      trtllm-hpc bench latest --requests 100 --rate 8 --arrival poisson
    """
    from trtllm_hpc.bench.benchmark import Settings, refuse_invalid, run_benchmark
    from trtllm_hpc.client.wait import wait_for_endpoint
    from trtllm_hpc.report.tables import as_text, benchmark_table

    settings = Settings(requests, rate, max_tokens, prompts, seed, arrival, warmup, timeout_seconds, model)
    summary = run_benchmark(run, wait_for_endpoint(run, wait_seconds), settings)
    text = as_text(benchmark_table(summary))
    write_text(run.benchmark_table, text)
    if as_json:
        import json

        click.echo(json.dumps(summary, indent=2, ensure_ascii=False))
    else:
        click.echo(text, nl=False)
    refuse_invalid(summary, run.run_id)
