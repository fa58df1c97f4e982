"""How throughput and latency go with the load: one point a level."""

from __future__ import annotations

from typing import Any

from trtllm_hpc.bench.levels import ClosedLoop
from trtllm_hpc.bench.summary import Interval, LevelResult
from trtllm_hpc.report.html.chart import Chart, NoChart, Row, Section, altair, described
from trtllm_hpc.report.html.material import Material, is_valid
from trtllm_hpc.report.html.theme import QUIET
from trtllm_hpc.report.words import of_levels, quantity

_STATISTICS = ("p50", "p90", "p99")
_HEIGHT = 260
_DECADE = 10.0
"""A ratio of largest to smallest above which an axis is logarithmic."""


def curve_section(material: Material) -> Section:
    """Latency against throughput for each kind of latency, and throughput against load."""
    results = material.measurement.levels
    intro = "Each point is a level of load. Bars: 95 % confidence intervals, where levels were repeated."
    section = Section("curve", "Throughput and latency", intro)
    if len(results) < 2:
        reason = "One level of load was measured; a curve needs two or more."
        section.charts.append(NoChart("Latency against throughput", reason))
        return section
    for key, title in (("latency_ms", "End-to-end latency"), ("ttft_ms", "TTFT"), ("tpot_ms", "TPOT")):
        section.charts.append(_latency_curve(material, key, f"{title} against throughput"))
    section.charts.append(_load_curve(material))
    return section


def _in_order(material: Material) -> list[tuple[str, LevelResult]]:
    """Levels with their labels, from the lowest load to the highest: a search takes them in another order."""
    return sorted(
        zip(material.labels, material.measurement.levels, strict=True), key=lambda pair: _load(pair[1])
    )


def _load(result: LevelResult) -> float:
    level = result.level
    return float(level.concurrency) if isinstance(level, ClosedLoop) else level.rate_per_s


def _latency_curve(material: Material, key: str, title: str) -> Chart | NoChart:
    rows = [row for place in enumerate(_in_order(material)) for row in _points(*place, key)]
    if not rows:
        return NoChart(title, _no_figure(material, key))
    alt = altair()
    x_title = "output tokens/s" if rows[0]["by"] == "output_tokens_per_s" else "requests finished/s"
    x = alt.X("x:Q", title=x_title, scale=alt.Scale(zero=False, nice=True))
    y = alt.Y("ms:Q", title="ms", scale=_scale(alt, [row["ms"] for row in rows]))
    color = alt.Color("statistic:N", sort=list(_STATISTICS))
    base = alt.Chart(alt.NamedData("points"))
    tooltip = [
        alt.Tooltip("level:N", title="level"),
        alt.Tooltip("statistic:N", title="statistic"),
        alt.Tooltip("told:N", title="latency"),
        alt.Tooltip("throughput:N", title=x_title),
        alt.Tooltip("valid:N", title="valid"),
    ]
    chart = alt.layer(
        base.mark_rule().encode(x=x, y=alt.Y("low:Q", title="ms"), y2="high:Q", color=color),
        base.mark_line().encode(x=x, y=y, color=color, order="place:Q"),
        base.mark_point(size=50, filled=True, opacity=1).encode(x=x, y=y, color=color, tooltip=tooltip),
        base.transform_filter("datum.statistic == 'p99'")
        .mark_text(align="right", dx=-7, dy=-7)
        .encode(x=x, y=y, text="level:N"),
    )
    worst = max(rows, key=lambda row: row["ms"])
    description = (
        f"{title}, {of_levels(len(material.labels))}; p50, p90 and p99. "
        f"The highest is {worst['statistic']} {quantity(worst['ms'])} ms at {worst['level']}."
    )
    return Chart(f"curve-{key[:-3]}", title, description, described(chart, _HEIGHT), {"points": rows})


def _points(place: int, labelled: tuple[str, LevelResult], key: str) -> list[Row]:
    label, result = labelled
    figures = result.metrics.get(key)
    by = "output_tokens_per_s" if "output_tokens_per_s" in result.metrics else "finished_rate_per_s"
    throughput = result.metrics.get(by)
    if not isinstance(figures, dict) or not isinstance(throughput, Interval):
        return []
    return [
        {
            "level": label,
            "place": place,
            "by": by,
            "x": throughput.mean,
            "throughput": with_interval(throughput),
            "statistic": statistic,
            "ms": figures[statistic].mean,
            "told": f"{with_interval(figures[statistic])} ms",
            # A logarithmic axis has no place for zero or less.
            "low": max(_low(figures[statistic]), figures[statistic].mean / _DECADE),
            "high": _high(figures[statistic]),
            "valid": "yes" if is_valid(result) else "no",
        }
        for statistic in _STATISTICS
        if statistic in figures
    ]


def _low(interval: Interval) -> float:
    return interval.mean if interval.low is None else interval.low


def _high(interval: Interval) -> float:
    return interval.mean if interval.high is None else interval.high


def with_interval(interval: Interval) -> str:
    """``12.3 (11.9 to 12.7)``; the mean alone of a single pass."""
    if interval.low is None or interval.high is None:
        return quantity(interval.mean)
    return f"{quantity(interval.mean)} ({quantity(interval.low)} to {quantity(interval.high)})"


def _no_figure(material: Material, key: str) -> str:
    if not material.measurement.streaming and key in ("ttft_ms", "tpot_ms", "itl_ms"):
        return "Answers were not streamed, so nobody can tell when their tokens came."
    return "No answered request has this figure."


def _scale(alt: Any, values: list[float]) -> Any:
    logarithmic = min(values) > 0 and max(values) / min(values) > _DECADE
    return alt.Scale(type="log", nice=True) if logarithmic else alt.Scale(zero=True, nice=True)


def _load_curve(material: Material) -> Chart | NoChart:
    title = "Load asked for and requests finished"
    rows: list[Row] = [
        {
            "level": label,
            "place": place,
            "x": _load(result),
            "rate": finished.mean,
            "told": with_interval(finished),
            "low": _low(finished),
            "high": _high(finished),
        }
        for place, (label, result) in enumerate(_in_order(material))
        if isinstance(finished := result.metrics.get("finished_rate_per_s"), Interval)
    ]
    if not rows:
        return NoChart(title, "No request was answered.")
    alt = altair()
    closed = isinstance(material.measurement.levels[0].level, ClosedLoop)
    x = alt.X(
        "x:Q", title="requests outstanding" if closed else "requests asked/s", scale=alt.Scale(zero=True)
    )
    y = alt.Y("rate:Q", title="requests finished/s", scale=alt.Scale(zero=True))
    base = alt.Chart(alt.NamedData("points"))
    layers = [
        base.mark_rule().encode(x=x, y=alt.Y("low:Q", title="requests finished/s"), y2="high:Q"),
        base.mark_line().encode(x=x, y=y, order="place:Q"),
        base.mark_point(size=50, filled=True, opacity=1).encode(
            x=x,
            y=y,
            tooltip=[alt.Tooltip("level:N", title="level"), alt.Tooltip("told:N", title="finished/s")],
        ),
    ]
    note = None
    if not closed:
        asked = alt.Chart(alt.NamedData("asked"))
        layers.insert(0, asked.mark_line(style=QUIET).encode(x="x:Q", y=alt.Y("rate:Q")))
        note = "The dashed line is where as much is finished as is asked."
    most = max(rows, key=lambda row: row["rate"])
    description = f"{title}. The most is {quantity(most['rate'])} finished/s at {most['level']}."
    top = max(row["x"] for row in rows)
    datasets = {"points": rows, "asked": [{"x": 0.0, "rate": 0.0}, {"x": top, "rate": top}]}
    return Chart("curve-load", title, description, described(alt.layer(*layers), _HEIGHT), datasets, note)
