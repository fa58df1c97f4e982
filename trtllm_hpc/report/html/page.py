"""``report.html`` and the PNGs of its charts, for one measurement."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from trtllm_hpc import __version__
from trtllm_hpc.bench.results import LevelResult
from trtllm_hpc.paths import RunPaths, kept_in_cache, write_text
from trtllm_hpc.render.environment import packaged_templates
from trtllm_hpc.report.formatting import plus_minus, quantity, share
from trtllm_hpc.report.headline import figure_of, finished_rate, is_valid, keeps_up, served
from trtllm_hpc.report.html.chart import DARK, LIGHT, Chart, Section, drawing
from trtllm_hpc.report.html.charts import MOST, sections_of
from trtllm_hpc.report.html.data import ReportData, read_report_data
from trtllm_hpc.report.html.tables import tables_of

_FOLDER = "report"


def write_report(paths: RunPaths, name: str, to: Path) -> None:
    """Write a measurement's report as HTML; raises RunNotFound, or TrtllmHpcError without vl-convert."""
    write_text(to, report_page(read_report_data(paths, name)))


def _drawable(sections: Iterable[Section]) -> Iterator[Chart]:
    for section in sections:
        yield from (chart for chart in section.charts if isinstance(chart, Chart))


def report_page(data: ReportData) -> str:
    """Return the whole page as text."""
    return rendered(
        "page",
        list(sections_of(data)),
        title=f"{data.run}: {data.measurement.name}",
        run=data.run,
        measurement=data.measurement,
        evaluation=data.evaluation,
        facts=_facts(data),
        headline=headline_words(data),
        cards=cards(data),
        most=MOST,
        **tables_of(data),
    )


def rendered(template: str, sections: Sequence[Section], *scripts: str, **values: Any) -> str:
    """Return the page of a template with the charts of its sections.

    The browser may run only the library, what draws the charts, and ``scripts``: names of templates.
    """
    charts = [chart.for_page() for chart in _drawable(sections)]
    texts = [drawing_library(), *(_source(f"{name}.js.j2") for name in ("charts", *scripts))]
    values |= {
        "sections": sections,
        "style": Markup(_source("style.css.j2")),
        "scripts": [Markup(text) for text in texts],
        "script_hashes": [_hash(text) for text in texts],
        "chart_data": Markup(json_in_html({"charts": charts, "themes": {"light": LIGHT, "dark": DARK}})),
        "version": __version__,
    }
    return _environment().get_template(f"{_FOLDER}/{template}.html.j2").render(values)


def _facts(data: ReportData) -> list[str]:
    measurement = data.measurement
    started = datetime.fromtimestamp(measurement.started_at, timezone.utc)
    kinds = {result.level.kind for result in measurement.levels}
    return [
        *served(measurement),
        f"{measurement.protocol}, {'streaming' if measurement.streaming else 'not streaming'}",
        *sorted(kinds),
        f"workload {measurement.settings.get('workload', {}).get('kind', 'unknown')}",
        *([f"energy {measurement.energy}"] if measurement.energy else []),
        *([f"check: {measurement.check.sentence}"] if measurement.check else []),
        *([f"profile: {measurement.profile}"] if measurement.profile else []),
        f"started {started:%Y-%m-%d %H:%M:%S} UTC",
    ]


@lru_cache(maxsize=1)
def drawing_library() -> str:
    """Return Vega, Vega-Lite and vega-embed as one script that is safe inside HTML."""
    pack = partial(drawing().javascript_bundle, "window.vegaEmbed = vegaEmbed;")
    # Packing takes over a second: the script is kept in the user's cache folder.
    bundle = kept_in_cache(f"vega/{metadata.version('vl-convert-python')}.js", pack)
    # An HTML parser ends the script element at this text, even inside a string.
    return re.sub(r"</(?=script)", r"<\\/", bundle, flags=re.IGNORECASE).replace("<!--", r"<\!--")


def json_in_html(plain: Any) -> str:
    """Return JSON that is safe in a ``script`` element: it cannot end the element or open a comment."""
    text = json.dumps(plain, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(script: str) -> str:
    """Return the script's hash as a Content-Security-Policy names it (CSP level 3, hash-source)."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@lru_cache(maxsize=1)
def _environment() -> Environment:
    made = Environment(
        loader=packaged_templates(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
    )
    made.filters |= {"breakable": _breakable, "quantity": quantity}
    return made


def _breakable(name: str) -> Markup:
    """Allow line breaks after ``.`` and ``_`` and before ``/GPU`` of a name in a narrow column."""
    return Markup(re.sub(r"([._])|(?=/\w\w)", r"\1<wbr>", str(escape(name))))


def _source(name: str) -> str:
    return packaged_templates().get_source(_environment(), f"{_FOLDER}/{name}")[0]


@dataclass(frozen=True)
class Card:
    """One figure in large type."""

    label: str
    value: str
    unit: str
    note: str = ""


def headline_words(data: ReportData) -> str:
    """Say which level the cards show, and why."""
    if data.headline is None:
        return "Nothing was measured."
    label = data.labels[data.headline]
    search = data.measurement.search
    if search is not None and search.max_rate_per_s is not None:
        return f"At {label}, the highest rate found that holds {search.slo}."
    if len(data.labels) == 1:
        return f"At {label}, the only level measured."
    levels = data.measurement.levels
    usable = "valid " if data.measurement.verdict.valid and any(map(is_valid, levels)) else ""
    if not keeps_up(levels[data.headline]):
        return f"At {label}, the {usable}level with the most requests finished each second."
    most = max(range(len(levels)), key=lambda place: finished_rate(levels[place]))
    top = (
        f" The highest throughput is {quantity(finished_rate(levels[most]))} requests/s, "
        f"at {data.labels[most]}, where requests queue up."
        if not keeps_up(levels[most])
        else ""
    )
    return f"At {label}, the highest {usable}load with which the server kept up.{top}"


def cards(data: ReportData) -> list[Card]:
    """The most important figures of the headline level."""
    if data.headline is None:
        return []
    result = data.measurement.levels[data.headline]
    failed = share(result.failed / result.measured if result.measured else None)
    return [*_measured(result), Card("Failed", failed, "", f"{result.failed:,} of {result.measured:,}")]


def _measured(result: LevelResult) -> Iterator[Card]:
    asked = figure_of(result, "asked_rate_per_s")
    requested = "" if asked is None else f"requested {quantity(asked.mean)}"
    for key, statistic, label, unit, note in (
        ("finished_rate_per_s", None, "Throughput", "requests/s", requested),
        ("output_tokens_per_s", None, "Output", "tokens/s", ""),
        ("goodput_per_s", None, "Goodput", "requests/s", "within the SLO"),
        ("energy_per_output_token_j", None, "Energy", "J/output token", ""),
        ("ttft_ms", "p50", "TTFT p50", "ms", ""),
        ("ttft_ms", "p99", "TTFT p99", "ms", ""),
        ("tpot_ms", "p50", "TPOT p50", "ms", ""),
        ("latency_ms", "p50", "Latency p50", "ms", ""),
        ("latency_ms", "p99", "Latency p99", "ms", ""),
    ):
        if (figure := figure_of(result, key, statistic)) is not None:
            notes = filter(None, (plus_minus(figure), note))
            yield Card(label, quantity(figure.mean), unit, "; ".join(notes))
