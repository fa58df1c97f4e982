"""Charts over time: the latency of every request, and the server's own metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from trtllm_hpc.bench.records import RequestRecord
from trtllm_hpc.bench.server_metrics.sampling import ServerSample
from trtllm_hpc.report.formatting import quantity
from trtllm_hpc.report.html.chart import (
    ASIDE,
    BAND,
    CATEGORIES,
    FAILED,
    Chart,
    NoChart,
    Row,
    Section,
    altair,
    axis,
    described,
    scale,
)
from trtllm_hpc.report.html.data import ReportData

MOST_DOTS = 1500
"""Requests in the latency chart: failed and slowest ones first, then evenly chosen ones."""
_RESERVED = 300
"""Dots reserved for failed requests, and for the slowest."""
_HEIGHT = 240
_NOT_MEASURED = "answered, not measured"
_STATES = {"answered": CATEGORIES[0], _NOT_MEASURED: ASIDE, "failed": FAILED}


def timeline_section(data: ReportData) -> Section:
    """Latency over time."""
    intro = "Seconds since the measurement began. Shaded: warm-up and drain, which are not measured."
    charts = [_dots(data)]
    return Section("timeline", "Timeline of requests", intro, charts, wide=True)


def bands(data: ReportData) -> list[dict[str, Any]]:
    """Stretches outside the measured windows, as rows for :func:`shaded`."""
    rows = []
    for label, result in zip(data.labels, data.measurement.levels, strict=True):
        for one in result.passes:
            window = one.window
            intervals = (("warm-up", one.started_s, window.start_s), ("drain", window.end_s, one.ended_s))
            rows += [
                {"begin": begin, "end": end, "what": f"{what} of {label}, pass {one.repeat + 1}"}
                for what, begin, end in intervals
                if end > begin
            ]
    return rows


def shaded(alt: Any) -> Any:
    """A layer that shades the intervals in the data set ``bands``."""
    return (
        alt.Chart(alt.NamedData("bands"))
        .mark_rect(style=BAND)
        .encode(x=alt.X("begin:Q"), x2="end:Q", tooltip=alt.Tooltip("what:N", title="shaded"))
    )


def seconds_axis(alt: Any, field: str, end_s: float) -> Any:
    """The time axis that all charts share."""
    return alt.X(f"{field}:Q", title="seconds", scale=alt.Scale(domain=[0, end_s], nice=False))


def end_of(data: ReportData) -> float:
    """End of the last pass, in seconds since the measurement began."""
    ends = [one.ended_s for result in data.measurement.levels for one in result.passes]
    ends += [record.ended_s for record in data.records]
    return max(ends, default=1.0)


def _dots(data: ReportData) -> Chart | NoChart:
    title = "Latency of each request"
    if not data.records:
        return NoChart(title, "No request was recorded.")
    shown = _chosen(data.records)
    rows: list[Row] = [
        {
            "due": record.scheduled_s,
            "ms": 1e3 * _latency_s(record),
            "state": "failed" if not record.ok else "answered" if record.measured else _NOT_MEASURED,
            "request": record.index,
            "level": data.labels[record.level],
            "status": record.status,
            "error": (record.error or "")[:120],
        }
        for record in shown
    ]
    alt = altair()
    times = [row["ms"] for row in rows]
    used = [state for state in _STATES if any(row["state"] == state for row in rows)]
    colors = alt.Scale(domain=used, range=[_STATES[state] for state in used])
    dots = (
        alt.Chart(alt.NamedData("dots"))
        .mark_point(filled=True, size=22, opacity=0.75)
        .encode(
            x=seconds_axis(alt, "due", end_of(data)),
            y=alt.Y("ms:Q", title="latency (ms)", scale=scale(alt, times), axis=axis(alt, times)),
            color=alt.Color("state:N", scale=colors),
            tooltip=["request:N", "level:N", "status:N", "error:N", alt.Tooltip("ms:Q", format=".4~r")],
        )
    )
    slowest = max(data.records, key=_latency_s)
    failed = sum(not record.ok for record in data.records)
    description = (
        f"{title} by when it was due: {len(data.records)} requests, {failed} failed; the longest took "
        f"{quantity(1e3 * _latency_s(slowest))} ms and was due at {quantity(slowest.scheduled_s)} s."
    )
    note = None
    if len(shown) < len(data.records):
        note = (
            f"{len(shown):,} of {len(data.records):,} requests are drawn: "
            f"up to {_RESERVED} failed ones and the {_RESERVED} slowest, the others evenly chosen."
        )
    datasets = {"dots": rows, "bands": bands(data)}
    return Chart("time-latency", title, description, described(shaded(alt) + dots, _HEIGHT), datasets, note)


def _chosen(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    if len(records) <= MOST_DOTS:
        return list(records)
    by_latency = sorted(range(len(records)), key=lambda place: -_latency_s(records[place]))
    failed = [place for place in range(len(records)) if not records[place].ok][:_RESERVED]
    reserved = {*failed, *by_latency[:_RESERVED]}
    others = [place for place in range(len(records)) if place not in reserved]
    room = MOST_DOTS - len(reserved)
    reserved |= {others[n * len(others) // room] for n in range(room)}
    return [records[place] for place in sorted(reserved)]


def _latency_s(record: RequestRecord) -> float:
    return record.ended_s - record.scheduled_s


# The server's own metrics ----------------------------------------------------------------

MOST_SAMPLES = 400
"""Points of one line; of more samples, only the largest of each interval is drawn."""
_METRIC_HEIGHT = 150


def server_section(data: ReportData) -> Section:
    """Requests in flight, KV cache and queue over time."""
    intro = "Sampled from the server's metrics page while the load ran, on the client's clock."
    cache = lines(data.samples, "kv_used_share", "KV cache in use")
    percent = [{**row, "value": 100 * row["value"]} for row in cache]
    queue = lines(data.samples, "queue_ms", "")
    by_model = [{**row, "line": row["line"].strip("[] ")} for row in queue]
    outstanding = [
        {"time": time_s, "value": float(count), "line": "client: outstanding"}
        for time_s, count in in_flight(data.records)
    ]
    outstanding += lines(data.samples, "requests_active", "server: active")
    outstanding += lines(data.samples, "requests_waiting", "server: waiting")
    charts = [
        _lines(data, "server-in-flight", "Requests in flight", "requests", outstanding),
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
    """At most ``MOST_SAMPLES`` rows of each line: the largest of each interval, so that no peak is lost."""
    kept = []
    for line in dict.fromkeys(row["line"] for row in rows):
        mine = [row for row in rows if row["line"] == line]
        step = -(-len(mine) // MOST_SAMPLES)
        kept += [max(mine[at : at + step], key=lambda row: row["value"]) for at in range(0, len(mine), step)]
    return kept


def in_flight(records: Sequence[RequestRecord]) -> list[tuple[float, int]]:
    """Each moment at which the number of requests in flight changes, with the number from then on."""
    changes: Counter[float] = Counter()
    for record in records:
        changes[record.sent_s] += 1
        changes[record.ended_s] -= 1
    moments = sorted(changes)
    return list(zip(moments, accumulate(changes[moment] for moment in moments), strict=True))


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
    note = None
    if len(kept) < len(rows):
        note = f"Each line has {MOST_SAMPLES} points: the largest value of each interval."
    datasets = {"lines": kept, "bands": bands(data)}
    return Chart(key, title, description, described(chart, _METRIC_HEIGHT), datasets, note)
