"""``trtllm-hpc metrics``: the server's own metrics."""

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
"""Between two samples of ``--watch``."""


@click.command("metrics")
@runs_option
@optional_run
@click.option(
    "--watch", is_flag=True, help="Sample every second until Ctrl-C, and show the rates in between."
)
@json_option
@click.pass_context
def command(ctx: click.Context, run: RunPaths | None, runs: Path | None, watch: bool, as_json: bool) -> None:
    """Show the metrics of RUN's server: its engine, its queue and its memory.

    Without --watch, counts and means are those since the server's start. With
    --watch they are those of each interval; with --json as well, each interval
    is one line.

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
    """The metrics of a server; with ``--watch --json`` one a line for each interval."""

    url: str
    """The metrics page."""
    host: str
    over_s: float | None
    """Length of the interval of counts and means; ``None``: since the server's start."""
    values: dict[str, float]
    """By the key of each figure, such as `kv_used_share`."""


def _samples(endpoint: Endpoint) -> Iterator[MetricsSample]:
    """Yield one sample for each interval, the first after the first interval."""

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
    """Redraw the samples on a terminal; into a pipe print one after the other."""
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
    """Return a table of the figures of the engine, of Triton's models and of the host."""
    series = {key: describe(key) for key in values}
    table = Table("server", "model", "now", right=("now",))
    for key, one in series.items():
        label = one.key.replace("_", " ") if one.of == "model" else one.label
        table.add_row(label, one.model or "", in_unit(values[key], one.unit))
    if any(one.of == "engine" for one in series.values()):
        return as_text(table)
    return f"This server shows nothing of its engine: its backend has no metrics.\n{as_text(table)}"


def in_unit(value: float, unit: str) -> str:
    """Return a figure as people read it, e.g. ``62 %``, ``1.5 GiB``, ``4.1 ms``, ``12``."""
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
