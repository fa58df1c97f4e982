"""Latency distributions of the measured requests: one cumulative curve for each level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trtllm_hpc.bench.metrics import ITL, LATENCY, TPOT, TTFT, PerRequest
from trtllm_hpc.report.formatting import count_levels, quantity
from trtllm_hpc.report.headline import ascending_levels
from trtllm_hpc.report.html.chart import Chart, NoChart, Section, altair, axis, described, scale
from trtllm_hpc.report.html.curves import no_figure
from trtllm_hpc.report.html.data import ReportData

MOST_LEVELS = 8
"""At most this many curves can be told apart in one chart."""
MOST_POINTS = 120
"""Points of one curve; a longer one is thinned evenly by share."""
_HEIGHT = 240
_SHARES = [0, 0.25, 0.5, 0.75, 0.9, 0.99]
_METRICS: tuple[tuple[PerRequest, str], ...] = (
    (TTFT, "Time to first token (TTFT)"),
    (TPOT, "Time per output token (TPOT), mean of each request"),
    (ITL, "Inter-token latency (ITL), all gaps pooled"),
    (LATENCY, "End-to-end latency, from schedule"),
)


def distribution_section(data: ReportData) -> Section:
    """One chart for each kind of latency."""
    section = Section(
        "distributions",
        "Distributions",
        "Share of measured requests that took at most the given time. A steep curve means steady latency; "
        "users notice a long tail to the right.",
    )
    for metric, title in _METRICS:
        section.charts.append(_distribution(data, metric, title))
    return section


def _distribution(data: ReportData, metric: PerRequest, title: str) -> Chart | NoChart:
    ascending = ascending_levels(data.measurement)
    levels = [ascending[place] for place in _evenly(len(ascending), MOST_LEVELS)]
    values = {level: _values(data, level, metric) for level in levels}
    rows = [row for level in levels for row in _points(data.labels[level], values[level])]
    if not rows:
        return NoChart(title, no_figure(data, metric.key))
    description = f"{title}: cumulative share of values, {count_levels(len(levels))}. " + " ".join(
        f"At {data.labels[level]}: {_middle(values[level])}." for level in levels if values[level]
    )
    return Chart(
        f"spread-{metric.key[:-3]}",
        title,
        description,
        _spec(rows, [data.labels[level] for level in levels]),
        {"points": rows},
        _note(data, levels, values),
    )


def _spec(rows: Sequence[dict[str, Any]], labels: list[str]) -> dict[str, Any]:
    alt = altair()
    times = [row["ms"] for row in rows]
    marks = alt.Axis(format=".0%", values=_SHARES, tickCount=len(_SHARES), labelOverlap=False)
    legend = alt.Legend() if len(labels) > 1 else None
    base = alt.Chart(alt.NamedData("points")).encode(
        x=alt.X("ms:Q", title="ms", scale=scale(alt, times, zero=False), axis=axis(alt, times)),
        y=alt.Y("share:Q", title=None, axis=marks, scale=alt.Scale(domain=[0, 1])),
        color=alt.Color("level:O", scale=alt.Scale(domain=labels), legend=legend),
    )
    tooltip = [
        alt.Tooltip("level:N", title="level"),
        alt.Tooltip("share:Q", title="share", format=".1%"),
        alt.Tooltip("ms:Q", title="ms", format=".4~r"),
    ]
    # A line has a single tooltip, so each point gets an invisible mark with its own.
    points = base.mark_point(opacity=0, size=80).encode(tooltip=tooltip)
    return described(alt.layer(base.mark_line(interpolate="step-after"), points), _HEIGHT)


def _values(data: ReportData, level: int, metric: PerRequest) -> list[float]:
    answered = (r for r in data.records if r.level == level and r.measured and r.ok)
    return sorted(value for record in answered for value in metric.values(record))


def _points(label: str, ordered: Sequence[float]) -> Iterator[dict[str, Any]]:
    for place in _evenly(len(ordered), MOST_POINTS):
        yield {"level": label, "ms": ordered[place], "share": (place + 1) / len(ordered)}


def _evenly(count: int, most: int) -> list[int]:
    """Return the indices of ``count`` items: all, or both ends and some evenly between."""
    kept = min(count, most)
    return [round(place * (count - 1) / max(kept - 1, 1)) for place in range(kept)]


def _middle(ordered: Sequence[float]) -> str:
    return f"median {quantity(ordered[(len(ordered) - 1) // 2])} ms, maximum {quantity(ordered[-1])} ms"


def _note(data: ReportData, levels: list[int], values: dict[int, list[float]]) -> str | None:
    notes = []
    if len(levels) < len(data.labels):
        notes.append(f"{len(levels)} of {len(data.labels)} levels are drawn.")
    if any(len(ordered) > MOST_POINTS for ordered in values.values()):
        notes.append(f"Each curve is drawn with {MOST_POINTS} points, evenly chosen by share.")
    return " ".join(notes) or None
