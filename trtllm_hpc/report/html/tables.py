"""The tables of the page: figures of each level, settings, provenance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trtllm_hpc.bench.metrics import BY_KEY, METRICS
from trtllm_hpc.bench.results import Interval, LevelResult
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
_STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
_MOST_ERRORS = 12


@dataclass(frozen=True)
class Table:
    """Rows of text; the first cell of each row is its heading."""

    title: str
    header: list[str]
    rows: list[list[str]] = field(default_factory=list)
    numeric: bool = True


def tables_of(data: ReportData) -> dict[str, Table | list[Table]]:
    """Return every table of the page, by its name in the page's template."""
    measurement = data.measurement
    tokens = {key.replace("_", " "): value for key, value in measurement.tokens.items()}
    return {
        "levels": level_table(data),
        "energy": Table("Energy of the GPUs", *energy(measurement)),
        "figures": [_figures(label, result) for label, result in data.ascending],
        "settings": _setting_tables(data),
        "provenance": _keyed("Provenance", _flat(measurement.provenance)),
        "turns": Table("By turn (ms)", list(TURN_HEADER), turn_rows(measurement, data.headline)),
        "tokens": _keyed("Tokens of measured requests", _flat(tokens)),
        "used": use_table(data),
        "errors": _keyed("Errors of measured requests", _errors(measurement.errors), "error", "requests"),
        "glossary": _glossary(data),
    }


def level_table(data: ReportData) -> Table:
    """Return a row for each level, with its most important figures."""
    table = Table(
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


def _figures(label: str, result: LevelResult) -> Table:
    table = Table(f"All figures at {label}", ["figure", *_STATISTICS])
    for key, figure in result.metrics.items():
        known = figure if isinstance(figure, dict) else {"mean": figure}
        cells = [_cell(known.get(it)) if it in known or len(known) > 1 else "" for it in _STATISTICS]
        metric = BY_KEY.get(key)
        table.rows.append([key if metric is None else f"{metric.label} ({metric.unit})", *cells])
    return table


def _glossary(data: ReportData) -> Table:
    shown = {key for result in data.measurement.levels for key in result.metrics}
    rows = [[it.label, it.unit, it.formula, it.meaning] for it in METRICS if it.key in shown]
    return Table("How each figure is computed", ["figure", "unit", "formula", "meaning"], rows, numeric=False)


def _setting_tables(data: ReportData) -> list[Table]:
    """Return the settings that differ from their defaults, then the rest."""
    defaults = set(_flat(Benchmark().model_dump(mode="json")))
    settings = list(_flat(data.measurement.settings))
    tables = (
        _keyed("Set", [setting for setting in settings if setting not in defaults]),
        _keyed("Defaults", [setting for setting in settings if setting in defaults]),
    )
    return [table for table in tables if table.rows]


def use_table(data: ReportData) -> Table:
    """Return waiting time, run time and GPU-hours of each stage; no rows if the run has no events."""
    header = ["stage", "waited (s)", "ran (s)", "GPUs", "GPU-hours", "mean W", "peak W"]
    rows = [
        [it.stage, quantity(it.waited_s), quantity(it.ran_s), str(it.gpus)]
        + [quantity(figure) for figure in (it.gpu_hours, it.mean_w, it.peak_w)]
        for it in data.uses
    ]
    if rows:
        rows.append(["all stages", "", "", "", quantity(sum(it.gpu_hours for it in data.uses)), "", ""])
    return Table("Used when this page was written", header, rows)


def _keyed(title: str, rows: Iterable[tuple[str, str]], key: str = "what", value: str = "value") -> Table:
    return Table(title, [key, value], [list(row) for row in rows], numeric=False)


def _errors(counts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    errors = sorted(counts.items(), key=lambda item: -item[1])
    for kind, count in errors[:_MOST_ERRORS]:
        yield cut(kind), f"{count:,}"
    if others := errors[_MOST_ERRORS:]:
        yield f"{len(others)} other kinds", f"{sum(count for _, count in others):,}"


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
