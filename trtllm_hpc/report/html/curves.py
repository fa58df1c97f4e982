"""Charts of the levels of load: latency against throughput, and distributions."""

from __future__ import annotations

import math

from trtllm_hpc.bench.metrics import ITL, LATENCY, TPOT, TTFT, PerRequest
from trtllm_hpc.bench.results import Interval, LevelResult
from trtllm_hpc.report.formatting import count_levels, quantity, with_interval
from trtllm_hpc.report.headline import ascending_levels, is_valid, load_of
from trtllm_hpc.report.html.chart import (
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

_TITLES = {"latency_ms": "End-to-end latency", "ttft_ms": "TTFT", "tpot_ms": "TPOT"}
_STATISTICS = ("p50", "p90", "p99")
_HEIGHT = 260
_FINISHED = "requests finished/s"
_JOINED_RATIO = 1.1
"""Loads closer than this ratio are not joined: of a search's last loads a line would show noise."""
_LABEL_WIDTH, _LABEL_HEIGHT = 0.09, 0.09
"""Size of a label as shares of the chart. Labels that would overlap are left out; the tooltip has them."""
_BELOW_ANY_AXIS = 1e-3
"""Lower end of an interval that reaches zero, as a share of its figure: a logarithmic axis has no zero."""


def curve_section(data: ReportData) -> Section:
    """Latency against throughput for each kind of latency."""
    intro = "Each point is a level of load. Bars: 95 % confidence intervals, where levels were repeated."
    if len(data.labels) < 2:
        reason = "One level of load was measured; a curve needs two or more."
        charts: list[Chart | NoChart] = [NoChart("Latency against throughput", reason)]
    else:
        charts = [_latency_chart(data, key, f"{title} against throughput") for key, title in _TITLES.items()]
    return Section("curve", "Throughput and latency", intro, charts)


def _latency_chart(data: ReportData, key: str, title: str) -> Chart | NoChart:
    levels = data.ascending
    by, x_title = "output_tokens_per_s", "output tokens/s"
    if not all(by in result.metrics for _, result in levels):
        by, x_title = "finished_rate_per_s", _FINISHED
    rows = [row for place in enumerate(levels) for row in _points(*place, key, by)]
    if not rows:
        return NoChart(title, no_figure(data, key))
    _mark_joined(rows, {label: load_of(result) for label, result in levels})
    _mark_labelled(rows)
    alt = altair()
    reach = [value for row in rows for value in (row["ms"], row["high"])]
    x = alt.X("x:Q", title=x_title, scale=alt.Scale(zero=True, nice=True))
    y = alt.Y("ms:Q", title="ms", scale=scale(alt, reach), axis=axis(alt, reach))
    color = alt.Color("statistic:N", scale=alt.Scale(domain=list(_STATISTICS)))
    base = alt.Chart(alt.NamedData("points"))
    columns = {"level": "level", "statistic": "statistic", "value": "latency", "throughput": x_title}
    tooltip = [alt.Tooltip(f"{name}:N", title=words) for name, words in {**columns, "valid": "valid"}.items()]
    layers = (
        base.mark_rule(clip=True).encode(x=x, y=alt.Y("low:Q", title="ms"), y2="high:Q", color=color),
        base.transform_filter("datum.joined").mark_line().encode(x=x, y=y, color=color, order="place:Q"),
        base.mark_point(size=50, filled=True, opacity=1).encode(x=x, y=y, color=color, tooltip=tooltip),
        base.transform_filter("datum.labelled")
        .mark_text(align="right", dx=-6, dy=-8)
        .encode(x=x, y=y, text="level:N"),
    )
    worst = max(rows, key=lambda row: row["ms"])
    description = (
        f"{title}, {count_levels(len(levels))}; p50, p90 and p99. "
        f"The highest is {worst['statistic']} {quantity(worst['ms'])} ms at {worst['level']}."
    )
    note = None
    if not all(row["joined"] for row in rows):
        note = "Lines join the loads in ascending order; those within 10 % of the one before are points only."
    spec = described(alt.layer(*layers), _HEIGHT)
    return Chart(f"curve-{key[:-3]}", title, description, spec, {"points": rows}, note)


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


# Distributions of the measured requests ---------------------------------------------------

MOST_LEVELS = 8
"""At most this many curves can be told apart in one chart."""
MOST_POINTS = 120
"""Points of one curve; a longer one is thinned evenly by share."""
_CUMULATIVE_HEIGHT = 240
_SHARES = [0, 0.25, 0.5, 0.75, 0.9, 0.99]
_METRICS: tuple[tuple[PerRequest, str], ...] = (
    (TTFT, "Time to first token (TTFT)"),
    (TPOT, "Time per output token (TPOT), mean of each request"),
    (ITL, "Inter-token latency (ITL), all gaps pooled"),
    (LATENCY, "End-to-end latency, from schedule"),
)


def distribution_section(data: ReportData) -> Section:
    """One chart for each kind of latency."""
    intro = (
        "Share of measured requests that took at most the given time. A steep curve means steady latency; "
        "users notice a long tail to the right."
    )
    charts = [_distribution(data, metric, title) for metric, title in _METRICS]
    return Section("distributions", "Distributions", intro, charts)


def _distribution(data: ReportData, metric: PerRequest, title: str) -> Chart | NoChart:
    ascending = ascending_levels(data.measurement)
    levels = [ascending[place] for place in _evenly(len(ascending), MOST_LEVELS)]
    answered = [record for record in data.records if record.measured and record.ok]
    curves = {
        data.labels[level]: sorted(it for one in answered if one.level == level for it in metric.values(one))
        for level in levels
    }
    rows: list[Row] = [
        {"level": label, "ms": ordered[place], "share": (place + 1) / len(ordered)}
        for label, ordered in curves.items()
        for place in _evenly(len(ordered), MOST_POINTS)
    ]
    if not rows:
        return NoChart(title, no_figure(data, metric.key))
    alt = altair()
    times = [row["ms"] for row in rows]
    marks = alt.Axis(format=".0%", values=_SHARES, tickCount=len(_SHARES), labelOverlap=False)
    legend = alt.Legend() if len(curves) > 1 else None
    base = alt.Chart(alt.NamedData("points")).encode(
        x=alt.X("ms:Q", title="ms", scale=scale(alt, times, zero=False), axis=axis(alt, times)),
        y=alt.Y("share:Q", title=None, axis=marks, scale=alt.Scale(domain=[0, 1])),
        color=alt.Color("level:O", scale=alt.Scale(domain=list(curves)), legend=legend),
    )
    tooltip = [
        alt.Tooltip("level:N", title="level"),
        alt.Tooltip("share:Q", title="share", format=".1%"),
        alt.Tooltip("ms:Q", title="ms", format=".4~r"),
    ]
    # A line has a single tooltip, so each point gets an invisible mark with its own.
    points = base.mark_point(opacity=0, size=80).encode(tooltip=tooltip)
    spec = described(alt.layer(base.mark_line(interpolate="step-after"), points), _CUMULATIVE_HEIGHT)
    description = f"{title}: cumulative share of values, {count_levels(len(levels))}. " + " ".join(
        f"At {label}: median {quantity(ordered[(len(ordered) - 1) // 2])} ms, "
        f"maximum {quantity(ordered[-1])} ms."
        for label, ordered in curves.items()
        if ordered
    )
    notes = []
    if len(levels) < len(data.labels):
        notes.append(f"{len(levels)} of {len(data.labels)} levels are drawn.")
    if any(len(ordered) > MOST_POINTS for ordered in curves.values()):
        notes.append(f"Each curve is drawn with {MOST_POINTS} points, evenly chosen by share.")
    key = f"spread-{metric.key[:-3]}"
    return Chart(key, title, description, spec, {"points": rows}, " ".join(notes) or None)


def _evenly(count: int, most: int) -> list[int]:
    """Return the indices of ``count`` items: all, or both ends and some evenly between."""
    kept = min(count, most)
    return [round(place * (count - 1) / max(kept - 1, 1)) for place in range(kept)]
