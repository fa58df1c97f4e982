"""The server's metrics and the client's view, on one clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtllm_hpc.bench.server_metrics.sampling import ServerSample
from trtllm_hpc.report.formatting import quantity
from trtllm_hpc.report.html.chart import Chart, NoChart, Section, altair, described
from trtllm_hpc.report.html.data import ReportData
from trtllm_hpc.report.html.timelines import bands, end_of, seconds_axis, shaded
from trtllm_hpc.report.in_flight import most_in_flight

MOST_POINTS = 400
"""Points of one line; of more samples, only the largest of each interval is drawn."""
_HEIGHT = 150
_CLIENT = "client: outstanding"


def server_section(data: ReportData) -> Section:
    """Requests in flight, KV cache and queue over time."""
    intro = "Sampled from the server's metrics page while the load ran, on the client's clock."
    cache = lines(data.samples, "kv_used_share", "KV cache in use")
    percent = [{**row, "value": 100 * row["value"]} for row in cache]
    queue = lines(data.samples, "queue_ms", "")
    by_model = [{**row, "line": row["line"].strip("[] ")} for row in queue]
    charts = [
        _lines(data, "server-in-flight", "Requests in flight", "requests", _in_flight(data)),
        _lines(data, "server-kv", "KV cache in use", "% of blocks", percent),
        _lines(data, "server-queue", "Time in the server's queue", "ms", by_model),
    ]
    return Section("server", "Server metrics", intro, charts, wide=True)


def lines(samples: Sequence[ServerSample], key: str, label: str) -> list[dict[str, Any]]:
    """One series as rows; one line for each model where several have it."""
    rows = []
    for sample in samples:
        for name, value in sample.values.items():
            if name == key:
                rows.append({"time": sample.time_s, "value": value, "line": label})
            elif name.startswith(f"{key}["):
                rows.append({"time": sample.time_s, "value": value, "line": f"{label} {name[len(key) :]}"})
    return rows


def thinned(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most ``MOST_POINTS`` rows of each line: the largest of each interval, so that no peak is lost."""
    kept = []
    for line in dict.fromkeys(row["line"] for row in rows):
        mine = [row for row in rows if row["line"] == line]
        step = -(-len(mine) // MOST_POINTS)
        kept += [max(mine[at : at + step], key=lambda row: row["value"]) for at in range(0, len(mine), step)]
    return kept


def _in_flight(data: ReportData) -> list[dict[str, Any]]:
    client = [
        {"time": time_s, "value": float(count), "line": _CLIENT}
        for time_s, count in most_in_flight(data.records, MOST_POINTS)
    ]
    server = lines(data.samples, "requests_active", "server: active")
    server += lines(data.samples, "requests_waiting", "server: waiting")
    return client + server


def _lines(data: ReportData, key: str, title: str, unit: str, rows: list[dict[str, Any]]) -> Chart | NoChart:
    if not rows:
        return NoChart(title, "The server has no metric for it.")
    # Sampling goes on a little longer than the load; later points would compress the chart.
    end = end_of(data)
    kept = thinned([row for row in rows if 0 <= row["time"] <= end])
    if not kept:
        return NoChart(title, "No sample was taken while the load ran.")
    names = list(dict.fromkeys(row["line"] for row in kept))
    alt = altair()
    legend = alt.Legend(columns=2) if len(names) > 1 else None
    base = alt.Chart(alt.NamedData("lines")).encode(
        x=seconds_axis(alt, "time", end),
        y=alt.Y("value:Q", title=unit, scale=alt.Scale(zero=True)),
        # Model names go into the domain, which is data; a sort order would become an expression.
        color=alt.Color("line:N", scale=alt.Scale(domain=names), legend=legend),
    )
    tooltip = [alt.Tooltip("line:N"), alt.Tooltip("time:Q", title="s"), alt.Tooltip("value:Q", format=".4~r")]
    points = base.mark_point(opacity=0, size=60).encode(tooltip=tooltip)
    chart = alt.layer(shaded(alt), base.mark_line(interpolate="step-after", clip=True), points)
    most = max(kept, key=lambda row: row["value"])
    description = (
        f"{title} over time: {', '.join(name for name in names if name) or 'one line'}. "
        f"The highest is {quantity(most['value'])} {unit} at {quantity(most['time'])} s."
    )
    note = (
        f"Each line has {MOST_POINTS} points: the largest value of each interval."
        if len(kept) < len(rows)
        else None
    )
    datasets = {"lines": kept, "bands": bands(data)}
    return Chart(key, title, description, described(chart, _HEIGHT), datasets, note)
