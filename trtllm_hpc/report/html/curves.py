"""Latency against throughput: one point a level of load."""

from __future__ import annotations

import math
from typing import Any

from trtllm_hpc.bench.results import Interval, LevelResult
from trtllm_hpc.report.headline import is_valid, load_of
from trtllm_hpc.report.html.chart import Chart, NoChart, Row, Section, altair, described
from trtllm_hpc.report.html.load_curve import load_chart
from trtllm_hpc.report.html.material import Material
from trtllm_hpc.report.html.scales import axis, is_wide, scale
from trtllm_hpc.report.words import high_of, low_of, of_levels, quantity, with_interval

_TITLES = {"latency_ms": "End-to-end latency", "ttft_ms": "TTFT", "tpot_ms": "TPOT"}
_STATISTICS = ("p50", "p90", "p99")
_HEIGHT = 260
_JOINED_RATIO = 1.1
"""Loads nearer to each other than this ratio are not joined: a search ends with several loads at which the
throughput is the same, and a line through them would only show noise."""
_LABEL_WIDTH, _LABEL_HEIGHT = 0.09, 0.09
"""A label's place, as shares of the chart; labels that would overlap are left to the tooltip."""
_BELOW_ANY_AXIS = 1e-3
"""Share of a figure that stands for zero and less, which a logarithmic axis has no place for."""


def curve_section(material: Material) -> Section:
    """Latency against throughput for each kind of latency, and throughput against load."""
    section = Section(
        "curve",
        "Throughput and latency",
        "Each point is a level of load. Bars: 95 % confidence intervals, where levels were repeated.",
    )
    if len(material.labels) < 2:
        reason = "One level of load was measured; a curve needs two or more."
        section.charts.append(NoChart("Latency against throughput", reason))
        return section
    levels = material.ascending
    for key, title in _TITLES.items():
        section.charts.append(_latency_chart(material, levels, key, f"{title} against throughput"))
    section.charts.append(load_chart([(load_of(result), label, result) for label, result in levels]))
    return section


def _latency_chart(
    material: Material, levels: list[tuple[str, LevelResult]], key: str, title: str
) -> Chart | NoChart:
    by = _throughput_key(levels)
    rows = [row for place in enumerate(levels) for row in _points(*place, key, by)]
    _mark_joined(rows, {label: load_of(result) for label, result in levels})
    _mark_labelled(rows)
    if not rows:
        return NoChart(title, no_figure(material, key))
    worst = max(rows, key=lambda row: row["ms"])
    description = (
        f"{title}, {of_levels(len(levels))}; p50, p90 and p99. "
        f"The highest is {worst['statistic']} {quantity(worst['ms'])} ms at {worst['level']}."
    )
    x_title = "output tokens/s" if by == "output_tokens_per_s" else "requests finished/s"
    note = None
    if not all(row["joined"] for row in rows):
        note = "Lines join the loads in ascending order; those within 10 % of the one before are points only."
    return Chart(f"curve-{key[:-3]}", title, description, _spec(rows, x_title), {"points": rows}, note)


def no_figure(material: Material, key: str) -> str:
    """Why a latency has no values."""
    if not material.measurement.streaming and key in ("ttft_ms", "tpot_ms", "itl_ms"):
        return "Answers were not streamed, so nobody can tell when their tokens came."
    return "No answered request has this figure."


def _throughput_key(levels: list[tuple[str, LevelResult]]) -> str:
    tokens = "output_tokens_per_s"
    return tokens if all(tokens in result.metrics for _, result in levels) else "finished_rate_per_s"


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
            "told": f"{with_interval(figures[statistic])} ms",
            "low": max(low_of(figures[statistic]), figures[statistic].mean * _BELOW_ANY_AXIS),
            "high": high_of(figures[statistic]),
            "valid": "yes" if is_valid(result) else "no",
            "joined": True,
            "labelled": False,
        }
        for statistic in _STATISTICS
    ]


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
    told = {"level": "level", "statistic": "statistic", "told": "latency", "throughput": x_title}
    tooltip = [alt.Tooltip(f"{key}:N", title=words) for key, words in {**told, "valid": "valid"}.items()]
    layers = (
        base.mark_rule(clip=True).encode(x=x, y=alt.Y("low:Q", title="ms"), y2="high:Q", color=color),
        base.transform_filter("datum.joined").mark_line().encode(x=x, y=y, color=color, order="place:Q"),
        base.mark_point(size=50, filled=True, opacity=1).encode(x=x, y=y, color=color, tooltip=tooltip),
        base.transform_filter("datum.labelled")
        .mark_text(align="right", dx=-6, dy=-8)
        .encode(x=x, y=y, text="level:N"),
    )
    return described(alt.layer(*layers), _HEIGHT)
