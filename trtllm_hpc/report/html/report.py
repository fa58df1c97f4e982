"""``report.html`` and the charts' PNGs of one measurement."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from trtllm_hpc import __version__
from trtllm_hpc.paths import RunPaths, write_aside, write_text
from trtllm_hpc.report.html.chart import Chart, Section, as_png
from trtllm_hpc.report.html.curves import curve_section
from trtllm_hpc.report.html.distributions import distribution_section
from trtllm_hpc.report.html.material import Material, read_material
from trtllm_hpc.report.html.page import render_page
from trtllm_hpc.report.html.server import server_section
from trtllm_hpc.report.html.story import phase_section, search_section
from trtllm_hpc.report.html.tables import (
    error_table,
    figure_tables,
    glossary,
    level_table,
    provenance_table,
    setting_tables,
    token_table,
)
from trtllm_hpc.report.html.theme import light
from trtllm_hpc.report.html.timelines import timeline_section
from trtllm_hpc.report.html.verdict import cards, headline_words, judgement


def write_report(paths: RunPaths, name: str, to: Path) -> None:
    """Write the report of a measurement as one HTML file.

    Raises:
        RunNotFound: there is no such measurement.
        TrtllmHpcError: the packages that draw charts are not installed.
    """
    write_text(to, report_page(read_material(paths, name)))


def write_charts(paths: RunPaths, name: str, folder: Path) -> list[Path]:
    """Draw every chart of the report as a PNG in ``folder``, which is made if it is not there.

    Returns:
        The files, in the order of the report.

    Raises:
        RunNotFound: there is no such measurement.
        TrtllmHpcError: the packages that draw charts are not installed.
    """
    folder.mkdir(exist_ok=True)
    written = []
    for section in sections_of(read_material(paths, name)):
        for chart in section.charts:
            if isinstance(chart, Chart):
                with write_aside(folder / f"{chart.key}.png") as aside:
                    aside.write_bytes(as_png(chart, {**light(), "background": "white"}))
                written.append(folder / f"{chart.key}.png")
    return written


def sections_of(material: Material) -> Iterator[Section]:
    """The charts, by what they answer; each section is made when it is asked for."""
    for section_of in (
        search_section,
        curve_section,
        distribution_section,
        timeline_section,
        server_section,
        phase_section,
    ):
        section = section_of(material)
        if section is not None:
            yield section


def report_page(material: Material) -> str:
    """The whole page as text."""
    measurement = material.measurement
    return render_page(
        list(sections_of(material)),
        title=f"{material.run}: {measurement.name}",
        run=material.run,
        measurement=measurement,
        facts=_facts(material),
        judgement=judgement(material),
        headline=headline_words(material),
        cards=cards(material),
        levels=level_table(material),
        figures=figure_tables(material),
        settings=setting_tables(material),
        provenance=provenance_table(material),
        tokens=token_table(material),
        errors=error_table(material),
        glossary=glossary(material),
        version=__version__,
    )


def _facts(material: Material) -> list[str]:
    measurement = material.measurement
    started = datetime.fromtimestamp(measurement.started_at, timezone.utc)
    kinds = {result.level.kind for result in measurement.levels}
    return [
        f"model {measurement.model}",
        f"{measurement.protocol}, {'streaming' if measurement.streaming else 'not streaming'}",
        *sorted(kinds),
        f"workload {measurement.settings.get('workload', {}).get('kind', 'unknown')}",
        f"started {started:%Y-%m-%d %H:%M:%S} UTC",
    ]
