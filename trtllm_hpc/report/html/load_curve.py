"""Requests finished against the load asked for."""

from __future__ import annotations

from typing import Any

from trtllm_hpc.bench.levels import ClosedLoop
from trtllm_hpc.bench.results import Interval, LevelResult
from trtllm_hpc.report.html.chart import Chart, NoChart, Row, altair, described
from trtllm_hpc.report.html.theme import QUIET
from trtllm_hpc.report.words import high_of, low_of, quantity, with_interval

_HEIGHT = 260
_FINISHED = "requests finished/s"


def load_chart(levels: list[tuple[float, str, LevelResult]]) -> Chart | NoChart:
    """The chart; levels are given as load, label and result, from the lowest load to the highest."""
    title = "Load asked for and requests finished"
    rows: list[Row] = [
        {
            "level": label,
            "place": place,
            "x": load,
            "rate": finished.mean,
            "told": with_interval(finished),
            "low": low_of(finished),
            "high": high_of(finished),
        }
        for place, (load, label, result) in enumerate(levels)
        if isinstance(finished := result.metrics.get("finished_rate_per_s"), Interval)
    ]
    if not rows:
        return NoChart(title, "No request was answered.")
    closed = isinstance(levels[0][2].level, ClosedLoop)
    most = max(rows, key=lambda row: row["rate"])
    description = f"{title}. The most is {quantity(most['rate'])} finished/s at {most['level']}."
    top = max(row["x"] for row in rows)
    datasets = {"points": rows}
    note = None
    if not closed:
        datasets["asked"] = [{"x": 0.0, "rate": 0.0}, {"x": top, "rate": top}]
        note = "The dashed line is where as much is finished as is asked."
    return Chart("curve-load", title, description, _spec(closed), datasets, note)


def _spec(closed: bool) -> dict[str, Any]:
    alt = altair()
    asked = "requests outstanding" if closed else "requests asked/s"
    x = alt.X("x:Q", title=asked, scale=alt.Scale(zero=True))
    y = alt.Y("rate:Q", title=_FINISHED, scale=alt.Scale(zero=True))
    base = alt.Chart(alt.NamedData("points"))
    tooltip = [alt.Tooltip("level:N"), alt.Tooltip("told:N", title="finished/s")]
    layers = [
        base.mark_rule(clip=True).encode(x=x, y=alt.Y("low:Q", title=_FINISHED), y2="high:Q"),
        base.mark_line().encode(x=x, y=y, order="place:Q"),
        base.mark_point(size=50, filled=True, opacity=1).encode(x=x, y=y, tooltip=tooltip),
    ]
    if not closed:
        layers.insert(0, alt.Chart(alt.NamedData("asked")).mark_line(style=QUIET).encode(x=x, y=y))
    return described(alt.layer(*layers), _HEIGHT)
