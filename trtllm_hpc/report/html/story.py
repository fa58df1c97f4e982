"""The chart of the phases from submit to ready, and the one of the search."""

from __future__ import annotations

from typing import Any

from trtllm_hpc.report.html.chart import Chart, NoChart, Row, Section, altair, described
from trtllm_hpc.report.html.material import Material
from trtllm_hpc.report.html.phases import WAITS
from trtllm_hpc.report.html.theme import ASIDE, CATEGORIES, FAILED, QUIET
from trtllm_hpc.report.sentences import reasons_not_held
from trtllm_hpc.report.words import quantity, search_words

_ROW = 34
_WORDS = 300
"""Pixels of a phase's words; a chart on a telephone has no more."""
_HOLDS, _BREAKS = "holds", "does not hold"


def phase_section(material: Material) -> Section:
    """What passed between ``submit`` and a ready server."""
    ready = material.story.ready_s
    intro = (
        "No server of this run is known to have become ready."
        if ready is None
        else f"The server was ready {quantity(ready)} s after the run was submitted."
    )
    return Section("phases", "From submit to ready", intro, [_phases(material)], wide=True)


def _phases(material: Material) -> Chart | NoChart:
    title = "Phases of the run"
    rows: list[Row] = [
        {
            "phase": f"{phase.stage}: {phase.name}, {quantity(phase.end_s - phase.begin_s)} s",
            "begin": phase.begin_s,
            "end": phase.end_s,
            "seconds": phase.end_s - phase.begin_s,
            "kind": "waits" if phase.name == WAITS else "works",
        }
        for phase in material.story.phases
    ]
    if not rows:
        return NoChart(title, "The run folder holds no events of a start.")
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
    # Above the bars, not beside: a narrow screen has no room for both.
    words = base.mark_text(align="left", dy=-7, limit=_WORDS).encode(x=alt.value(0), text="phase:N")
    return described(alt.layer(bars, words), _ROW * count)


def search_section(material: Material) -> Section | None:
    """The rates that the search tried; ``None`` where nothing was searched."""
    search = material.measurement.search
    if search is None:
        return None
    rows: list[Row] = [
        {
            "step": step,
            "rate": tried.rate_per_s,
            "state": _HOLDS if tried.holds else _BREAKS,
            "passes": f"{tried.passes_held} of {tried.passes}",
            "why": " ".join(reasons_not_held(material.measurement, tried))[:160],
        }
        for step, tried in enumerate(search.tried, 1)
    ]
    section = Section("search", "Search for the highest rate", search_words(search), wide=True)
    if not rows:
        section.charts.append(NoChart("Rates tried", "No rate was tried."))
        return section
    alt = altair()
    colors = alt.Scale(domain=[_HOLDS, _BREAKS], range=[CATEGORIES[2], FAILED])
    shapes = alt.Scale(domain=[_HOLDS, _BREAKS], range=["circle", "cross"])
    x = alt.X("step:O", title="step of the search", axis=alt.Axis(labelAngle=0))
    y = alt.Y("rate:Q", title="requests asked/s", scale=alt.Scale(zero=True))
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
