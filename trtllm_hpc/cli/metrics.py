"""``trtllm-hpc metrics``: the server's own metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from trtllm_hpc.cli.options import json_option, print_json, run_argument
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.paths import RunPaths, call_name
from trtllm_hpc.report.server_table import server_text
from trtllm_hpc.report.tables import terminal_width
from trtllm_hpc.runs.endpoint import endpoint_of
from trtllm_hpc.runtime.records import Endpoint


@click.command("metrics")
@run_argument
@click.option(
    "--watch", is_flag=True, help="Sample again and again until Ctrl-C, and show the rates in between."
)
@click.option(
    "--interval-seconds",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="Interval between two samples of --watch.",
)
@json_option
def command(run: RunPaths, runs: Path | None, watch: bool, interval_seconds: float, as_json: bool) -> None:
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
    from trtllm_hpc.bench.server_metrics.sampling import fetch_page
    from trtllm_hpc.bench.server_metrics.series import since_start

    endpoint = endpoint_of(run, 0.0)
    try:
        if not watch:
            _show(
                MetricsSample(endpoint.metrics, endpoint.host, None, since_start(fetch_page(endpoint))),
                as_json,
            )
        elif as_json:
            for sample in _samples(endpoint, interval_seconds):
                print_json(sample, indent=None)
        else:
            _redraw(endpoint, interval_seconds)
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
    """By key, see [the server's metrics](server-metrics.md)."""


def _samples(endpoint: Endpoint, interval_s: float) -> Iterator[MetricsSample]:
    """Yield one sample for each interval, the first after the first interval."""
    from trtllm_hpc.bench.server_metrics.sampling import fetch_page
    from trtllm_hpc.bench.server_metrics.series import values

    before, before_s = fetch_page(endpoint), time.monotonic()
    while True:
        time.sleep(interval_s)
        page, page_s = fetch_page(endpoint), time.monotonic()
        over_s = page_s - before_s
        yield MetricsSample(endpoint.metrics, endpoint.host, over_s, values(page, before, over_s))
        before, before_s = page, page_s


def _show(sample: MetricsSample, as_json: bool) -> None:
    if as_json:
        print_json(sample)
    else:
        click.echo(_text(sample), nl=False)


def _text(sample: MetricsSample) -> str:
    over = "since its start" if sample.over_s is None else f"over the last {sample.over_s:.1f} s"
    title = f"{sample.host} ({sample.url}), counts and means {over}"
    return f"{title}\n\n{server_text(sample.values)}"


def _redraw(endpoint: Endpoint, interval_s: float) -> None:
    """Redraw the samples on a terminal; into a pipe print one after the other."""
    if terminal_width() is None:
        for sample in _samples(endpoint, interval_s):
            click.echo(_text(sample))
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(emoji=False), auto_refresh=False) as live:
        for sample in _samples(endpoint, interval_s):
            live.update(Text(_text(sample)), refresh=True)
