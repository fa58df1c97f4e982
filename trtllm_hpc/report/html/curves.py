"""Charts with one point for each level of load: latency, throughput, and the rates of a search."""

from __future__ import annotations

import math
from typing import Any

from trtllm_hpc.bench.levels import ClosedLoop
from trtllm_hpc.bench.results import Interval, LevelResult, SearchResult
from trtllm_hpc.report.formatting import count_levels, quantity, search_sentence, with_interval
from trtllm_hpc.report.headline import is_valid, load_of
from trtllm_hpc.report.html.chart import (
    CATEGORIES,
    FAILED,
    QUIET,
    Chart,
    NoChart,
    Row,
    Section,
    altair,
    axis,
    described,
    is_wide,
    scale,
)
from trtllm_hpc.report.html.data import ReportData
from trtllm_hpc.report.sentences import reasons_not_held

_TITLES = {"latency_ms": "End-to-end latency", "ttft_ms": "TTFT", "tpot_ms": "TPOT"}
_STATISTICS = ("p50", "p90", "p99")
_HEIGHT = 260
_HOLDS, _BREAKS = "holds", "does not hold"
_JOINED_RATIO = 1.1
"""Loads closer to each other than this ratio are not joined: a search ends with several loads of the same
throughput, and a line through them would only show noise."""
_LABEL_WIDTH, _LABEL_HEIGHT = 0.09, 0.09
"""Size of a label as shares of the chart. Labels that would overlap are left out; the tooltip has them."""
_BELOW_ANY_AXIS = 1e-3
"""Lower end of an interval that reaches zero, as a share of its figure: a logarithmic axis has no zero."""


def curve_section(data: ReportData) -> Section:
    """Latency against throughput for each kind of latency, and throughput against load."""
    section = Section(
        "curve",
        "Throughput and latency",
        "Each point is a level of load. Bars: 95 % confidence intervals, where levels were repeated.",
    )
    if len(data.labels) < 2:
        reason = "One level of load was measured; a curve needs two or more."
        section.charts.append(NoChart("Latency against throughput", reason))
        return section
    levels = data.ascending
    for key, title in _TITLES.items():
        section.charts.append(_latency_chart(data, levels, key, f"{title} against throughput"))
    section.charts.append(load_chart([(load_of(result), label, result) for label, result in levels]))
    return section


def _latency_chart(
    data: ReportData, levels: list[tuple[str, LevelResult]], key: str, title: str
) -> Chart | NoChart:
    by = "output_tokens_per_s"
    if not all(by in result.metrics for _, result in levels):
        by = "finished_rate_per_s"
    rows = [row for place in enumerate(levels) for row in _points(*place, key, by)]
    _mark_joined(rows, {label: load_of(result) for label, result in levels})
    _mark_labelled(rows)
    if not rows:
        return NoChart(title, no_figure(data, key))
    worst = max(rows, key=lambda row: row["ms"])
    description = (
        f"{title}, {count_levels(len(levels))}; p50, p90 and p99. "
        f"The highest is {worst['statistic']} {quantity(worst['ms'])} ms at {worst['level']}."
    )
    x_title = "output tokens/s" if by == "output_tokens_per_s" else "requests finished/s"
    note = None
    if not all(row["joined"] for row in rows):
        note = "Lines join the loads in ascending order; those within 10 % of the one before are points only."
    return Chart(f"curve-{key[:-3]}", title, description, _spec(rows, x_title), {"points": rows}, note)


def no_figure(data: ReportData, key: str) -> str:
    """Why a latency has no values."""
    if not data.measurement.streaming and key in ("ttft_ms", "tpot_ms", "itl_ms"):
        return "Answers were not streamed, so the times of their tokens are unknown."
    return "No successful request has this figure."


def _points(place: int, labelled: tuple[str, LevelResult], key: str, by: str) -> list[Row]:
    label, result = labelled
    figures, throughput = result.metrics.get(key), result.metrics.get(by)
    if not isinstance(figures, dict) or not isinstance(throughput, Interval):
        return []
    return [
        {
            "level": label,
            "place": place,
            "x": throughput.mean,
            "throughput": with_interval(throughput),
            "statistic": statistic,
            "ms": figures[statistic].mean,
            "value": f"{with_interval(figures[statistic])} ms",
            "low": max(_ends(figures[statistic])[0], figures[statistic].mean * _BELOW_ANY_AXIS),
            "high": _ends(figures[statistic])[1],
            "valid": "yes" if is_valid(result) else "no",
            "joined": True,
            "labelled": False,
        }
        for statistic in _STATISTICS
    ]


def _ends(interval: Interval) -> tuple[float, float]:
    """Return both ends of an interval; of a single pass the figure itself."""
    if interval.low is None or interval.high is None:
        return interval.mean, interval.mean
    return interval.low, interval.high


def _mark_joined(rows: list[Row], loads: dict[str, float]) -> None:
    """Mark the rows that a line joins: from the lowest load on, those well above the one before."""
    last = 0.0
    for label, load in loads.items():
        if joined := load >= last * _JOINED_RATIO:
            last = load
        for row in rows:
            if row["level"] == label:
                row["joined"] = joined


def _mark_labelled(rows: list[Row]) -> None:
    """Mark the p99 rows whose labels do not overlap; those of the joined levels come first."""
    p99 = [row for row in rows if row["statistic"] == "p99"]
    widest = max((row["x"] for row in p99), default=0.0) or 1.0
    heights = [row["ms"] for row in rows]
    log = bool(heights) and is_wide(heights)
    tallest = math.log(max(heights) / min(heights)) if log else max(heights, default=0.0) or 1.0
    taken: list[tuple[float, float]] = []
    for row in sorted(p99, key=lambda row: not row["joined"]):
        x, y = row["x"] / widest, (math.log(row["ms"] / min(heights)) if log else row["ms"]) / tallest
        row["labelled"] = all(
            abs(x - other_x) > _LABEL_WIDTH or abs(y - other_y) > _LABEL_HEIGHT for other_x, other_y in taken
        )
        if row["labelled"]:
            taken.append((x, y))


def _spec(rows: list[Row], x_title: str) -> dict[str, Any]:
    alt = altair()
    reach = [value for row in rows for value in (row["ms"], row["high"])]
    x = alt.X("x:Q", title=x_title, scale=alt.Scale(zero=True, nice=True))
    y = alt.Y("ms:Q", title="ms", scale=scale(alt, reach), axis=axis(alt, reach))
    color = alt.Color("statistic:N", scale=alt.Scale(domain=list(_STATISTICS)))
    base = alt.Chart(alt.NamedData("points"))
    labels = {"level": "level", "statistic": "statistic", "value": "latency", "throughput": x_title}
    tooltip = [alt.Tooltip(f"{key}:N", title=words) for key, words in {**labels, "valid": "valid"}.items()]
    layers = (
        base.mark_rule(clip=True).encode(x=x, y=alt.Y("low:Q", title="ms"), y2="high:Q", color=color),
        base.transform_filter("datum.joined").mark_line().encode(x=x, y=y, color=color, order="place:Q"),
        base.mark_point(size=50, filled=True, opacity=1).encode(x=x, y=y, color=color, tooltip=tooltip),
        base.transform_filter("datum.labelled")
        .mark_text(align="right", dx=-6, dy=-8)
        .encode(x=x, y=y, text="level:N"),
    )
    return described(alt.layer(*layers), _HEIGHT)


_FINISHED = "requests finished/s"


def load_chart(levels: list[tuple[float, str, LevelResult]]) -> Chart | NoChart:
    """Throughput against load. ``levels``: load, label and result, in ascending order of load."""
    title = "Requested load and finished requests"
    rows: list[Row] = [
        {
            "level": label,
            "place": place,
            "x": load,
            "rate": finished.mean,
            "value": with_interval(finished),
            "low": _ends(finished)[0],
            "high": _ends(finished)[1],
        }
        for place, (load, label, result) in enumerate(levels)
        if isinstance(finished := result.metrics.get("finished_rate_per_s"), Interval)
    ]
    if not rows:
        return NoChart(title, "No request was answered.")
    closed = isinstance(levels[0][2].level, ClosedLoop)
    most = max(rows, key=lambda row: row["rate"])
    description = f"{title}. The highest is {quantity(most['rate'])} finished/s at {most['level']}."
    top = max(row["x"] for row in rows)
    datasets = {"points": rows}
    note = None
    if not closed:
        datasets["asked"] = [{"x": 0.0, "rate": 0.0}, {"x": top, "rate": top}]
        note = "On the dashed line, the finished rate equals the requested rate."
    return Chart("curve-load", title, description, _load_spec(closed), datasets, note)


def _load_spec(closed: bool) -> dict[str, Any]:
    alt = altair()
    asked = "requests outstanding" if closed else "requested rate (1/s)"
    x = alt.X("x:Q", title=asked, scale=alt.Scale(zero=True))
    y = alt.Y("rate:Q", title=_FINISHED, scale=alt.Scale(zero=True))
    base = alt.Chart(alt.NamedData("points"))
    tooltip = [alt.Tooltip("level:N"), alt.Tooltip("value:N", title="finished/s")]
    layers = [
        base.mark_rule(clip=True).encode(x=x, y=alt.Y("low:Q", title=_FINISHED), y2="high:Q"),
        base.mark_line().encode(x=x, y=y, order="place:Q"),
        base.mark_point(size=50, filled=True, opacity=1).encode(x=x, y=y, tooltip=tooltip),
    ]
    if not closed:
        layers.insert(0, alt.Chart(alt.NamedData("asked")).mark_line(style=QUIET).encode(x=x, y=y))
    return described(alt.layer(*layers), _HEIGHT)


def search_section(data: ReportData, search: SearchResult) -> Section:
    """The rates that the search tried."""
    rows: list[Row] = [
        {
            "step": step,
            "rate": tried.rate_per_s,
            "state": _HOLDS if tried.holds else _BREAKS,
            "passes": f"{tried.passes_held} of {tried.passes}",
            "why": " ".join(reasons_not_held(data.measurement, tried))[:160],
        }
        for step, tried in enumerate(search.tried, 1)
    ]
    section = Section("search", "Search for the highest rate", search_sentence(search), wide=True)
    if not rows:
        section.charts.append(NoChart("Rates tried", "No rate was tried."))
        return section
    alt = altair()
    colors = alt.Scale(domain=[_HOLDS, _BREAKS], range=[CATEGORIES[2], FAILED])
    shapes = alt.Scale(domain=[_HOLDS, _BREAKS], range=["circle", "cross"])
    x = alt.X("step:O", title="step of the search", axis=alt.Axis(labelAngle=0))
    y = alt.Y("rate:Q", title="requested rate (1/s)", scale=alt.Scale(zero=True))
    base = alt.Chart(alt.NamedData("tried")).encode(x=x, y=y)
    points = base.mark_point(filled=True, size=110, opacity=1).encode(
        color=alt.Color("state:N", scale=colors),
        shape=alt.Shape("state:N", scale=shapes),
        tooltip=[alt.Tooltip(f"{name}:N") for name in ("rate", "state", "passes", "why")],
    )
    layers = [base.mark_line(style=QUIET), points]
    description = "Rates in the order of the search: " + ", ".join(
        f"{quantity(row['rate'])}/s {row['state']}" for row in rows
    )
    spec = described(alt.layer(*layers), 200)
    section.charts.append(Chart("search", "Rates tried", f"{description}.", spec, {"tried": rows}))
    return section
