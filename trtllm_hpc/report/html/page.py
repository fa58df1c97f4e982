"""``report.html`` of one measurement."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from trtllm_hpc import __version__
from trtllm_hpc.config.benchmark import Benchmark
from trtllm_hpc.errors import TrtllmHpcError
from trtllm_hpc.paths import RunPaths, kept_in_cache, write_text
from trtllm_hpc.render.environment import packaged_templates
from trtllm_hpc.report.formatting import NONE, cut, plus_minus, quantity, share
from trtllm_hpc.report.headline import (
    ascending_levels,
    figure_of,
    headline_level,
    is_valid,
    keeps_up,
    level_labels,
    served,
)
from trtllm_hpc.report.html.chart import THEME, Chart, ChartSection
from trtllm_hpc.report.html.charts import MOST, ReportData, read_report_data, sections_of
from trtllm_hpc.report.measurement_table import energy_table, turns_table
from trtllm_hpc.report.tables import Table

_FOLDER = "report"
_RATES = {
    "sent/s": "sent_rate_per_s",
    "finished/s": "finished_rate_per_s",
    "output tokens/s": "output_tokens_per_s",
}
_LATENCIES = {
    f"{name} {statistic} (ms)": (f"{name.lower()}_ms", statistic)
    for name in ("TTFT", "TPOT", "latency")
    for statistic in ("p50", "p99")
}
_MOST_ERRORS = 12
_CARDS = (
    ("finished_rate_per_s", None, "Throughput", "requests/s"),
    ("output_tokens_per_s", None, "Output", "tokens/s"),
    ("goodput_per_s", None, "Goodput", "requests/s"),
    ("energy_per_output_token_j", None, "Energy", "J/output token"),
    ("ttft_ms", "p50", "TTFT p50", "ms"),
    ("ttft_ms", "p99", "TTFT p99", "ms"),
    ("tpot_ms", "p50", "TPOT p50", "ms"),
    ("latency_ms", "p50", "Latency p50", "ms"),
    ("latency_ms", "p99", "Latency p99", "ms"),
)


def write_report(paths: RunPaths, name: str, to: Path) -> None:
    """Write a measurement's HTML report. Raises RunNotFound, or TrtllmHpcError without vl-convert."""
    write_text(to, report_page(read_report_data(paths, name)))


def report_page(data: ReportData) -> str:
    """Return the whole page as text."""
    measurement = data.measurement
    defaults = set(_flat(Benchmark().model_dump(mode="json")))
    chosen = [setting for setting in _flat(measurement.settings) if setting not in defaults]
    errors = sorted(measurement.errors.items(), key=lambda item: -item[1])[:_MOST_ERRORS]
    started = datetime.fromtimestamp(measurement.started_at, timezone.utc)
    facts = [
        *served(measurement),
        f"{measurement.protocol}, {'streaming' if measurement.streaming else 'not streaming'}",
        *sorted({result.level.kind for result in measurement.levels}),
        f"workload {measurement.settings.get('workload', {}).get('kind', 'unknown')}",
        *([f"energy {measurement.energy}"] if measurement.energy else []),
        f"started {started:%Y-%m-%d %H:%M:%S} UTC",
    ]
    return rendered(
        "page",
        list(sections_of(data)),
        title=f"{data.run}: {measurement.name}",
        run=data.run,
        measurement=measurement,
        evaluation=data.evaluation,
        facts=facts,
        headline=headline_words(data),
        cards=list(cards(data)),
        most=MOST,
        levels=_level_table(data),
        energy=energy_table(measurement),
        settings=Table("what", "value", rows=chosen),
        provenance=Table("what", "value", rows=_flat(measurement.provenance)),
        turns=turns_table(measurement, headline_level(measurement)),
        errors=Table("error", "requests", rows=((cut(words), f"{count:,}") for words, count in errors)),
    )


def rendered(template: str, sections: Sequence[ChartSection], *scripts: str, **values: Any) -> str:
    """Return the page of a template with the charts of its sections.

    The browser may run only the library, what draws the charts, and ``scripts``: names of templates.
    """
    charts = [
        chart.for_page() for section in sections for chart in section.charts if isinstance(chart, Chart)
    ]
    texts = [drawing_library(), *(_source(f"{name}.js.j2") for name in ("charts", *scripts))]
    values |= {
        "sections": sections,
        "style": Markup(_source("style.css.j2")),
        "scripts": [Markup(text) for text in texts],
        # As a Content-Security-Policy names scripts (CSP level 3, hash-source).
        "script_hashes": [b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts],
        "chart_data": Markup(json_in_html({"charts": charts, "theme": THEME})),
        "version": __version__,
    }
    return _environment().get_template(f"{_FOLDER}/{template}.html.j2").render(values)


@lru_cache(maxsize=1)
def drawing_library() -> str:
    """Return Vega, Vega-Lite and vega-embed as one script that is safe inside HTML.

    Raises TrtllmHpcError if the package that has them is not installed.
    """
    try:
        from vl_convert import javascript_bundle
    except ImportError as error:
        raise TrtllmHpcError(
            f"The report needs the Python package {error.name!r}, which is not installed.",
            hint="pip install 'trtllm-hpc[report]'",
        ) from error
    pack = partial(javascript_bundle, "window.vegaEmbed = vegaEmbed;")
    # Packing takes over a second: the script is kept in the user's cache folder.
    bundle = kept_in_cache(f"vega/{metadata.version('vl-convert-python')}.js", pack)
    # An HTML parser ends the script element at this text, even inside a string.
    return re.sub(r"</(?=script)", r"<\\/", bundle, flags=re.IGNORECASE).replace("<!--", r"<\!--")


def json_in_html(plain: Any) -> str:
    """Return JSON that can neither end a ``script`` element nor open a comment in it."""
    text = json.dumps(plain, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


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
    """Return a sentence with the level that the cards show, and the reason."""
    measurement, place = data.measurement, headline_level(data.measurement)
    if place is None:
        return "Nothing was measured."
    label, search = level_labels(measurement)[place], measurement.search
    if search is not None and search.max_rate_per_s is not None:
        return f"At {label}, the highest rate found that holds {search.slo}."
    if len(measurement.levels) == 1:
        return f"At {label}, the only level measured."
    valid = "valid " if measurement.verdict.valid else ""
    if not keeps_up(measurement.levels[place]):
        return f"At {label}, the {valid}level with the most requests finished each second."
    return f"At {label}, the highest {valid}load with which the server kept up."


def cards(data: ReportData) -> Iterator[Card]:
    """Yield a card for each of the most important figures of the headline level."""
    place = headline_level(data.measurement)
    if place is None:
        return
    result = data.measurement.levels[place]
    asked = figure_of(result, "asked_rate_per_s")
    notes = {"finished_rate_per_s": f"asked {quantity(asked.mean)}" if asked else ""}
    notes["goodput_per_s"] = "within the SLO"
    for key, statistic, label, unit in _CARDS:
        if (figure := figure_of(result, key, statistic)) is not None:
            words = filter(None, (plus_minus(figure), notes.get(key)))
            yield Card(label, quantity(figure.mean), unit, "; ".join(words))
    failed = share(result.failed / result.measured if result.measured else None)
    yield Card("Failed", failed, "", f"{result.failed:,} of {result.measured:,}")


def _level_table(data: ReportData) -> Table:
    """Return a row for each level, with its most important figures."""
    headers = ("valid", "passes", "requests", "failed", *_RATES, *_LATENCIES)
    table = Table("level", *headers, right=headers)
    for label, result in ascending_levels(data.measurement):
        figures = [figure_of(result, key) for key in _RATES.values()]
        figures += [figure_of(result, *which) for which in _LATENCIES.values()]
        # The margin stands below the figure.
        cells = [
            NONE if figure is None else f"{quantity(figure.mean)}\n{plus_minus(figure)}".strip()
            for figure in figures
        ]
        counts = (str(len(result.passes)), f"{result.measured:,}", f"{result.failed:,}")
        table.add_row(label, "yes" if is_valid(result) else "NO", *counts, *cells)
    return table


def _flat(plain: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield nested keys joined by dots, with values as text."""
    for key, value in plain.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{name}.")
        elif isinstance(value, (list, tuple)):
            yield name, cut(", ".join(map(str, value))) or NONE
        else:
            yield name, NONE if value is None or value == {} else cut(str(value))
