"""The measurement along its clock: every request's latency, and how requests overlap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trtllm_hpc.bench.records import RequestRecord
from trtllm_hpc.report.html.chart import Chart, NoChart, Section, altair, described
from trtllm_hpc.report.html.material import Material
from trtllm_hpc.report.html.scales import axis, scale
from trtllm_hpc.report.html.theme import ASIDE, BAND, CATEGORIES, FAILED
from trtllm_hpc.report.words import quantity

MOST_DOTS = 1500
"""Requests in the chart of latencies: failed and slowest ones first, then evenly chosen."""
MOST_BARS = 80
"""Requests in the chart of bars."""
_SURE = 300
"""Dots kept for failed requests, and for the slowest."""
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


def timeline_section(material: Material) -> Section:
    """Latencies over time, and bars of one stretch."""
    intro = (
        "Seconds since the measurement began. "
        "Shaded stretches are warm-up and drain, which count for no figure."
    )
    charts = [_dots(material), _bars(material)]
    return Section("timeline", "Time line of requests", intro, charts, wide=True)


def bands(material: Material) -> list[dict[str, Any]]:
    """Stretches outside the measured windows, as rows for :func:`shaded`."""
    rows = []
    for label, result in zip(material.labels, material.measurement.levels, strict=True):
        for one in result.passes:
            window = one.window
            stretches = (("warm-up", one.started_s, window.start_s), ("drain", window.end_s, one.ended_s))
            rows += [
                {"begin": begin, "end": end, "what": f"{what} of {label}, pass {one.repeat + 1}"}
                for what, begin, end in stretches
                if end > begin
            ]
    return rows


def shaded(alt: Any) -> Any:
    """A layer that shades the rows of the data set ``bands``."""
    return (
        alt.Chart(alt.NamedData("bands"))
        .mark_rect(style=BAND)
        .encode(x=alt.X("begin:Q"), x2="end:Q", tooltip=alt.Tooltip("what:N", title="shaded"))
    )


def seconds_axis(alt: Any, field: str, end_s: float) -> Any:
    """The axis that all time lines share."""
    return alt.X(f"{field}:Q", title="seconds", scale=alt.Scale(domain=[0, end_s], nice=False))


def end_of(material: Material) -> float:
    """When the last pass was over."""
    ends = [one.ended_s for result in material.measurement.levels for one in result.passes]
    ends += [record.ended_s for record in material.records]
    return max(ends, default=1.0)


def _dots(material: Material) -> Chart | NoChart:
    title = "Latency of each request"
    if not material.records:
        return NoChart(title, "No request was recorded.")
    shown = _chosen(material.records)
    rows = [_dot(material, record) for record in shown]
    alt = altair()
    times = [row["ms"] for row in rows]
    used = [state for state in _STATES if any(row["state"] == state for row in rows)]
    colors = alt.Scale(domain=used, range=[_STATES[state] for state in used])
    dots = (
        alt.Chart(alt.NamedData("dots"))
        .mark_point(filled=True, size=22, opacity=0.75)
        .encode(
            x=seconds_axis(alt, "due", end_of(material)),
            y=alt.Y("ms:Q", title="latency (ms)", scale=scale(alt, times), axis=axis(alt, times)),
            color=alt.Color("state:N", scale=colors),
            tooltip=[alt.Tooltip(f"{name}:N") for name in ("request", "level", "status", "error")]
            + [alt.Tooltip("ms:Q", format=".4~r")],
        )
    )
    slowest = max(material.records, key=_latency_s)
    failed = sum(not record.ok for record in material.records)
    description = (
        f"{title} by when it was due: {len(material.records)} requests, {failed} failed; the longest took "
        f"{quantity(1e3 * _latency_s(slowest))} ms and was due at {quantity(slowest.scheduled_s)} s."
    )
    note = None
    if len(shown) < len(material.records):
        note = (
            f"{len(shown):,} of {len(material.records):,} requests are drawn: "
            f"up to {_SURE} failed ones and the {_SURE} slowest, the others evenly chosen."
        )
    datasets = {"dots": rows, "bands": bands(material)}
    return Chart("time-latency", title, description, described(shaded(alt) + dots, _HEIGHT), datasets, note)


def _chosen(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    if len(records) <= MOST_DOTS:
        return list(records)
    by_latency = sorted(range(len(records)), key=lambda place: -_latency_s(records[place]))
    failed = [place for place in range(len(records)) if not records[place].ok][:_SURE]
    sure = {*failed, *by_latency[:_SURE]}
    others = [place for place in range(len(records)) if place not in sure]
    room = MOST_DOTS - len(sure)
    sure |= {others[n * len(others) // room] for n in range(room)}
    return [records[place] for place in sorted(sure)]


def _dot(material: Material, record: RequestRecord) -> dict[str, Any]:
    state = "failed" if not record.ok else "answered" if record.measured else "answered, not measured"
    return {
        "due": record.scheduled_s,
        "ms": 1e3 * _latency_s(record),
        "state": state,
        "request": record.index,
        "level": material.labels[record.level],
        "status": record.status,
        "error": (record.error or "")[:120],
    }


def _latency_s(record: RequestRecord) -> float:
    return record.ended_s - record.scheduled_s


def _bars(material: Material) -> Chart | NoChart:
    title = "Requests side by side"
    level = material.headline
    records = [] if level is None else material.of_pass(level, 0)
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
            tooltip=[alt.Tooltip(f"{name}:N") for name in ("request", "status", "part")]
            + [alt.Tooltip("ms:Q", format=".4~r")],
        )
    )
    place = f"at {material.labels[level]}, pass 1"
    description = (
        f"{title}, {place}: for {len(shown)} requests, one bar each, "
        "when it was due, sent, got its first token and ended."
    )
    note = f"Level {material.labels[level]}, pass 1. " + (
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
    """The parts of one request's bar; a send less than 1 ms late is not seen at this scale."""
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
