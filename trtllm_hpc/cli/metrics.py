"""``trtllm-hpc metrics``: show the server's own metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from trtllm_hpc.bench.server_metrics import describe, fetch_page, since_start
from trtllm_hpc.bench.server_metrics import values as values_between
from trtllm_hpc.cli.shared import json_option, optional_run, print_json, runs_folder, runs_option
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.paths import RunPaths, call_name
from trtllm_hpc.report.formatting import format_bytes
from trtllm_hpc.report.tables import Table, as_text, terminal_width
from trtllm_hpc.runs.endpoint import endpoint_of
from trtllm_hpc.runs.find import find_run
from trtllm_hpc.runtime.records import Endpoint

_INTERVAL_S = 1.0
"""Time between samples with ``--watch``."""


@click.command("metrics")
@runs_option
@optional_run
@click.option("--watch", is_flag=True, help="Show the metrics of each second, until Ctrl-C.")
@json_option
@click.pass_context
def command(ctx: click.Context, run: RunPaths | None, runs: Path | None, watch: bool, as_json: bool) -> None:
    """Show the metrics of RUN's server: engine, queue and memory.

    Counts and means are since the server's start, or with --watch over each second.

    \b
    Examples:
      trtllm-hpc metrics
      trtllm-hpc metrics tiny-llama --watch
      trtllm-hpc metrics tiny-llama --json | jq .values.kv_used_share
    """
    run = run or find_run("latest", runs_folder(ctx))

    endpoint = endpoint_of(run, 0.0)
    try:
        if not watch:
            sample = MetricsSample(endpoint.metrics, endpoint.host, None, since_start(fetch_page(endpoint)))
            if as_json:
                print_json(sample)
            else:
                click.echo(_text(sample), nl=False)
        elif as_json:
            for sample in _samples(endpoint):
                print_json(sample, indent=None)
        else:
            _redraw(endpoint)
    except RequestFailed as error:
        error.hint = error.hint or f"trtllm-hpc status {call_name(run)}"
        raise
    except KeyboardInterrupt:
        if not watch:
            raise


@dataclass(frozen=True)
class MetricsSample:
    """The metrics of a server; with ``--watch --json`` a line for each interval."""

    url: str
    """URL of the metrics page."""
    host: str
    over_s: float | None
    """Interval of counts and means, in seconds; ``None``: since the server's start."""
    values: dict[str, float]
    """The figures by key, such as `kv_used_share`."""


def _samples(endpoint: Endpoint) -> Iterator[MetricsSample]:
    """Yield a sample after each interval."""
    before, before_s = fetch_page(endpoint), time.monotonic()
    while True:
        time.sleep(_INTERVAL_S)
        page, page_s = fetch_page(endpoint), time.monotonic()
        over_s = page_s - before_s
        yield MetricsSample(endpoint.metrics, endpoint.host, over_s, values_between(page, before, over_s))
        before, before_s = page, page_s


def _text(sample: MetricsSample) -> str:
    over = "since its start" if sample.over_s is None else f"over the last {sample.over_s:.1f} s"
    title = f"{sample.host} ({sample.url}), counts and means {over}"
    return f"{title}\n\n{server_text(sample.values)}"


def _redraw(endpoint: Endpoint) -> None:
    """Redraw the samples on a terminal; elsewhere print them one after the other."""
    if terminal_width() is None:
        for sample in _samples(endpoint):
            click.echo(_text(sample))
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(emoji=False), auto_refresh=False) as live:
        for sample in _samples(endpoint):
            live.update(Text(_text(sample)), refresh=True)


def server_text(values: Mapping[str, float]) -> str:
    """Return a table with the figures of the engine, Triton's models and the host."""
    series = {key: describe(key) for key in values}
    table = Table("server", "model", "now", right=("now",))
    for key, figure in series.items():
        label = figure.key.replace("_", " ") if figure.of == "model" else figure.label
        table.add_row(label, figure.model or "", in_unit(values[key], figure.unit))
    if any(figure.of == "engine" for figure in series.values()):
        return as_text(table)
    return f"This server's backend has no metrics of the engine.\n{as_text(table)}"


def in_unit(value: float, unit: str) -> str:
    """Return a figure with its unit, e.g. ``62 %``, ``1.5 GiB``, ``4.1 ms``, ``12``."""
    if unit == "share":
        return f"{value:.0%}".replace("%", " %")
    if unit == "bytes":
        return format_bytes(value)
    if unit == "ms":
        return f"{value:.1f} ms" if value < 100 else f"{value:.0f} ms"
    if unit == "1/s":
        return f"{value:.1f}/s"
    number = f"{value:.0f}" if float(value).is_integer() else f"{value:.1f}"
    return f"{number} {unit}" if unit in ("tokens", "tokens/s", "W") else number
