"""The tables of the page: figures of each level, settings, provenance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trtllm_hpc.bench.results import Interval
from trtllm_hpc.config.benchmark import Benchmark
from trtllm_hpc.report.formatting import NONE, cut, plus_minus, quantity
from trtllm_hpc.report.headline import figure_of, is_valid
from trtllm_hpc.report.html.data import ReportData
from trtllm_hpc.report.measurement_table import TURN_HEADER, energy, turn_rows

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


@dataclass(frozen=True)
class PageTable:
    """Rows of text; the first cell of each row is its heading."""

    title: str
    header: list[str]
    rows: list[list[str]] = field(default_factory=list)
    numeric: bool = True


def tables_of(data: ReportData) -> dict[str, PageTable | list[PageTable]]:
    """Return every table of the page, by its name in the page's template."""
    measurement = data.measurement
    defaults = set(_flat(Benchmark().model_dump(mode="json")))
    chosen = [setting for setting in _flat(measurement.settings) if setting not in defaults]
    errors = sorted(measurement.errors.items(), key=lambda item: -item[1])[:_MOST_ERRORS]
    counts = [(cut(words), f"{count:,}") for words, count in errors]
    return {
        "levels": level_table(data),
        "energy": PageTable("Energy of the GPUs", *energy(measurement)),
        "settings": _keyed("Settings that are not the defaults", chosen),
        "provenance": _keyed("Provenance", _flat(measurement.provenance)),
        "turns": PageTable("By turn (ms)", list(TURN_HEADER), turn_rows(measurement, data.headline)),
        "errors": _keyed("Errors of measured requests", counts, "error", "requests"),
    }


def level_table(data: ReportData) -> PageTable:
    """Return a row for each level, with its most important figures."""
    table = PageTable(
        "Figures of each level",
        ["level", "valid", "passes", "requests", "failed", *_RATES, *_LATENCIES],
    )
    for label, result in data.ascending:
        figures = [figure_of(result, key) for key in _RATES.values()]
        figures += [figure_of(result, *which) for which in _LATENCIES.values()]
        counts = [str(len(result.passes)), f"{result.measured:,}", f"{result.failed:,}"]
        table.rows.append([label, "yes" if is_valid(result) else "NO", *counts, *map(_cell, figures)])
    return table


def _cell(figure: Interval | None) -> str:
    """Return ``12.3`` with ``± 0.4`` below it, or a dash."""
    return NONE if figure is None else f"{quantity(figure.mean)}\n{plus_minus(figure)}".strip()


def _keyed(title: str, rows: Iterable[tuple[str, str]], key: str = "what", value: str = "value") -> PageTable:
    return PageTable(title, [key, value], [list(row) for row in rows], numeric=False)


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
