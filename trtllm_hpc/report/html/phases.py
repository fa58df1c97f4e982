"""The chart of the phases from submit to ready."""

from __future__ import annotations

from typing import Any

from trtllm_hpc.report.formatting import quantity
from trtllm_hpc.report.html.chart import (
    ASIDE,
    CATEGORIES,
    Chart,
    NoChart,
    Row,
    Section,
    altair,
    described,
)
from trtllm_hpc.report.html.data import WAITS, ReportData

_ROW = 34
_LABEL_PX = 300
"""Width limit of a phase's label in pixels; a chart on a phone has no more."""


def phase_section(data: ReportData) -> Section:
    """The phases between ``submit`` and a ready server."""
    ready = data.start.ready_s
    intro = (
        "No server of this run became ready, as far as its events show."
        if ready is None
        else f"The server was ready {quantity(ready)} s after the run was submitted."
    )
    return Section("phases", "From submit to ready", intro, [_phases(data)], wide=True)


def _phases(data: ReportData) -> Chart | NoChart:
    title = "Phases of the run"
    rows: list[Row] = [
        {
            "phase": f"{phase.stage}: {phase.name}, {quantity(phase.end_s - phase.begin_s)} s",
            "begin": phase.begin_s,
            "end": phase.end_s,
            "seconds": phase.end_s - phase.begin_s,
            "kind": "waits" if phase.name == WAITS else "works",
        }
        for phase in data.start.phases
    ]
    if not rows:
        return NoChart(title, "The run folder holds no events of a server start.")
    longest = max(rows, key=lambda row: row["seconds"])
    description = f"{title}: " + "; ".join(row["phase"] for row in rows)
    note = f"The longest is {longest['phase']}."
    return Chart("phases", title, f"{description}.", _phase_spec(len(rows)), {"phases": rows}, note)


def _phase_spec(count: int) -> dict[str, Any]:
    alt = altair()
    colors = alt.Scale(domain=["works", "waits"], range=[CATEGORIES[0], ASIDE])
    base = alt.Chart(alt.NamedData("phases")).encode(
        y=alt.Y("phase:N", sort=None, axis=None), tooltip=alt.Tooltip("phase:N")
    )
    bars = base.mark_bar(height=9, cornerRadius=2, yOffset=7).encode(
        x=alt.X("begin:Q", title="seconds since submit", scale=alt.Scale(zero=True, nice=False)),
        x2="end:Q",
        color=alt.Color("kind:N", scale=colors),
    )
    # Above the bars and not beside them: a narrow screen has no room for both.
    words = base.mark_text(align="left", dy=-7, limit=_LABEL_PX).encode(x=alt.value(0), text="phase:N")
    return described(alt.layer(bars, words), _ROW * count)
