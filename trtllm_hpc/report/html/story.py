"""The chart of the phases from submit to ready, and the one of the search."""

from __future__ import annotations

from trtllm_hpc.report.html.chart import Chart, NoChart, Row, Section, altair, described
from trtllm_hpc.report.html.material import Material
from trtllm_hpc.report.html.phases import WAITS
from trtllm_hpc.report.html.theme import ASIDE, CATEGORIES, FAILED, QUIET
from trtllm_hpc.report.words import quantity, search_words

_ROW = 26
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
            "phase": f"{phase.stage}: {phase.name}",
            "begin": phase.begin_s,
            "end": phase.end_s,
            "seconds": phase.end_s - phase.begin_s,
            "told": f"{quantity(phase.end_s - phase.begin_s)} s",
            "kind": "waits" if phase.name == WAITS else "works",
        }
        for phase in material.story.phases
    ]
    if not rows:
        return NoChart(title, "The run folder holds no events of a start.")
    alt = altair()
    colors = alt.Scale(domain=["works", "waits"], range=[CATEGORIES[0], ASIDE])
    base = alt.Chart(alt.NamedData("phases")).encode(
        y=alt.Y("phase:N", sort=None, title=None, axis=alt.Axis(labelLimit=170, grid=False)),
        tooltip=[alt.Tooltip("phase:N"), alt.Tooltip("told:N", title="took")],
    )
    end = max(row["end"] for row in rows)
    # Room on the right for the words behind the last bar.
    scale = alt.Scale(domain=[0, 1.12 * end], nice=False)
    bars = base.mark_bar(height=12, cornerRadius=2, minBandSize=2).encode(
        x=alt.X("begin:Q", title="seconds since submit", scale=scale),
        x2="end:Q",
        color=alt.Color("kind:N", scale=colors),
    )
    words = base.mark_text(align="left", dx=5).encode(x=alt.X("end:Q", scale=scale), text="told:N")
    longest = max(rows, key=lambda row: row["seconds"])
    description = f"{title}: " + "; ".join(f"{row['phase']} {row['told']}" for row in rows)
    note = f"The longest is '{longest['phase']}' with {longest['told']}."
    spec = described(alt.layer(bars, words), _ROW * len(rows))
    return Chart("phases", title, f"{description}.", spec, {"phases": rows}, note)


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
            "why": "; ".join(tried.broken)[:160],
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
