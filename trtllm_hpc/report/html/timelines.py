"""Charts over time: the latency of every request, and how requests overlap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trtllm_hpc.bench.records import RequestRecord
from trtllm_hpc.report.formatting import quantity
from trtllm_hpc.report.html.chart import (
    ASIDE,
    BAND,
    CATEGORIES,
    FAILED,
    Chart,
    NoChart,
    Section,
    altair,
    axis,
    described,
    scale,
)
from trtllm_hpc.report.html.data import ReportData

MOST_DOTS = 1500
"""Requests in the latency chart: failed and slowest ones first, then evenly chosen ones."""
MOST_BARS = 80
"""Requests in the bar chart."""
_RESERVED = 300
"""Dots reserved for failed requests, and for the slowest."""
_HEIGHT = 240
_BAR_STEP = 5
_PARTS = {
    "late send": CATEGORIES[3],
    "to first token": CATEGORIES[1],
    "generates": CATEGORIES[0],
    "whole answer": CATEGORIES[0],
    "failed": FAILED,
}
_STATES = {"answered": CATEGORIES[0], "answered, not measured": ASIDE, "failed": FAILED}


def timeline_section(data: ReportData) -> Section:
    """Latency over time, and a bar for each request of one interval."""
    intro = "Seconds since the measurement began. Shaded: warm-up and drain, which are not measured."
    charts = [_dots(data), _bars(data)]
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
    rows = [_dot(data, record) for record in shown]
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


def _dot(data: ReportData, record: RequestRecord) -> dict[str, Any]:
    state = "failed" if not record.ok else "answered" if record.measured else "answered, not measured"
    return {
        "due": record.scheduled_s,
        "ms": 1e3 * _latency_s(record),
        "state": state,
        "request": record.index,
        "level": data.labels[record.level],
        "status": record.status,
        "error": (record.error or "")[:120],
    }


def _latency_s(record: RequestRecord) -> float:
    return record.ended_s - record.scheduled_s


def _bars(data: ReportData) -> Chart | NoChart:
    title = "Requests side by side"
    level = data.headline
    records = [] if level is None else data.of_pass(level, 0)
    if not records or level is None:
        return NoChart(title, "No request was recorded.")
    shown = _around_slowest(records)
    rows = [
        {**part, "row": place, "request": record.index, "status": record.status}
        for place, record in enumerate(shown)
        for part in _parts(record)
    ]
    alt = altair()
    used = [part for part in _PARTS if any(row["part"] == part for row in rows)]
    colors = [_PARTS[part] for part in used]
    chart = (
        alt.Chart(alt.NamedData("bars"))
        .mark_bar(height={"band": 0.8})
        .encode(
            x=alt.X("begin:Q", title="seconds", scale=alt.Scale(zero=False, nice=False)),
            x2="end:Q",
            y=alt.Y("row:O", axis=None),
            color=alt.Color("part:N", scale=alt.Scale(domain=used, range=colors)),
            tooltip=["request:N", "status:N", "part:N", alt.Tooltip("ms:Q", format=".4~r")],
        )
    )
    place = f"at {data.labels[level]}, pass 1"
    description = (
        f"{title}, {place}: for {len(shown)} requests, one bar each, "
        "when it was due, sent, got its first token and ended."
    )
    note = f"Level {data.labels[level]}, pass 1. " + (
        f"{len(shown)} of {len(records):,} requests are drawn: those due around the slowest."
        if len(shown) < len(records)
        else "Every request of the pass is drawn."
    )
    height = max(60, _BAR_STEP * len(shown))
    return Chart("time-bars", title, description, described(chart, height), {"bars": rows}, note)


def _around_slowest(records: list[RequestRecord]) -> list[RequestRecord]:
    if len(records) <= MOST_BARS:
        return records
    slowest = max(range(len(records)), key=lambda place: _latency_s(records[place]))
    begin = min(max(0, slowest - MOST_BARS // 2), len(records) - MOST_BARS)
    return records[begin : begin + MOST_BARS]


def _parts(record: RequestRecord) -> Iterator[dict[str, Any]]:
    """The parts of one request's bar; a send less than 1 ms late is invisible at this scale."""
    if record.sent_s - record.scheduled_s >= 1e-3:
        yield _part("late send", record.scheduled_s, record.sent_s)
    first = record.first_token_s
    if not record.ok:
        yield _part("failed", record.sent_s, record.ended_s)
    elif first is None:
        yield _part("whole answer", record.sent_s, record.ended_s)
    else:
        yield _part("to first token", record.sent_s, first)
        yield _part("generates", first, record.ended_s)


def _part(name: str, begin_s: float, end_s: float) -> dict[str, Any]:
    return {"part": name, "begin": begin_s, "end": end_s, "ms": 1e3 * (end_s - begin_s)}
