"""The tables of the page: figures of each level, settings, provenance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trtllm_hpc.bench.metrics import BY_KEY, METRICS
from trtllm_hpc.bench.results import Interval, LevelResult
from trtllm_hpc.config.benchmark import Benchmark
from trtllm_hpc.report.formatting import NONE, cut, plus_minus, quantity
from trtllm_hpc.report.headline import is_valid
from trtllm_hpc.report.html.data import ReportData
from trtllm_hpc.report.measurement_table import HEADER, TITLE, TURN_HEADER, adapter_rows, energy, turn_rows

_LEVEL_COLUMNS = (
    *("valid", "passes", "requests", "failed", "sent/s", "finished/s", "output tokens/s"),
    *("TTFT p50 (ms)", "TTFT p99 (ms)", "TPOT p50 (ms)", "TPOT p99 (ms)"),
    *("latency p50 (ms)", "latency p99 (ms)"),
)
_MOST_ERRORS = 12
_STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")


@dataclass(frozen=True)
class Table:
    """Rows of text; the first cell of each row is its heading."""

    title: str
    header: list[str]
    rows: list[list[str]] = field(default_factory=list)
    numeric: bool = True


def tables_of(data: ReportData) -> dict[str, Table | list[Table]]:
    """Return every table of the page, by its name in the page's template."""
    return {
        "levels": level_table(data),
        "energy": Table("Energy of the GPUs", *energy(data.measurement)),
        "figures": [_figures(label, result) for label, result in data.ascending],
        "settings": _setting_tables(data),
        "provenance": _flat_table("Provenance", data.measurement.provenance),
        "adapters": Table(
            f"{TITLE} (ms)", list(HEADER), adapter_rows(data.measurement, data.records, data.headline)
        ),
        "turns": Table("By turn (ms)", list(TURN_HEADER), turn_rows(data.measurement, data.headline)),
        "tokens": _flat_table("Tokens of measured requests", data.measurement.tokens, words=True),
        "used": use_table(data),
        "errors": _error_table(data),
        "glossary": _glossary(data),
    }


def level_table(data: ReportData) -> Table:
    """One row for each level, with its most important figures."""
    table = Table("Figures of each level", ["level", *_LEVEL_COLUMNS])
    for label, result in data.ascending:
        table.rows.append([label, *_level_cells(result)])
    return table


def _level_cells(result: LevelResult) -> Iterator[str]:
    yield "yes" if is_valid(result) else "NO"
    yield str(len(result.passes))
    yield f"{sum(one.measured for one in result.passes):,}"
    yield f"{sum(one.failed for one in result.passes):,}"
    for key in ("sent_rate_per_s", "finished_rate_per_s", "output_tokens_per_s"):
        yield cell(result.metrics.get(key))
    for key in ("ttft_ms", "tpot_ms", "latency_ms"):
        figures = result.metrics.get(key)
        for statistic in ("p50", "p99"):
            yield cell(figures.get(statistic) if isinstance(figures, dict) else None)


def cell(figure: object) -> str:
    """``12.3`` with ``± 0.4`` below it, or a dash."""
    if not isinstance(figure, Interval):
        return NONE
    return f"{quantity(figure.mean)}\n{plus_minus(figure)}".strip()


def _figures(label: str, result: LevelResult) -> Table:
    table = Table(f"All figures at {label}", ["figure", *_STATISTICS])
    for key, figure in result.metrics.items():
        if isinstance(figure, dict):
            table.rows.append([figure_name(key), *(cell(figure.get(statistic)) for statistic in _STATISTICS)])
        else:
            table.rows.append([figure_name(key), cell(figure), *[""] * (len(_STATISTICS) - 1)])
    return table


def figure_name(key: str) -> str:
    """For example ``time to first token (ms)``; an unknown key as it is."""
    metric = BY_KEY.get(key)
    return key if metric is None else f"{metric.label} ({metric.unit})"


def _glossary(data: ReportData) -> Table:
    shown = {key for result in data.measurement.levels for key in result.metrics}
    rows = [
        [metric.label, metric.unit, metric.formula, metric.meaning]
        for metric in METRICS
        if metric.key in shown
    ]
    return Table("How each figure is computed", ["figure", "unit", "formula", "meaning"], rows, numeric=False)


def _setting_tables(data: ReportData) -> list[Table]:
    """Settings that differ from their defaults, then the rest."""
    defaults = dict(flat(Benchmark().model_dump(mode="json")))
    chosen = Table("Set", ["setting", "value"], numeric=False)
    others = Table("Defaults", ["setting", "value"], numeric=False)
    for key, value in flat(data.measurement.settings):
        table = others if key in defaults and defaults[key] == value else chosen
        table.rows.append([key, value])
    return [table for table in (chosen, others) if table.rows]


def use_table(data: ReportData) -> Table:
    """Waiting time, run time and GPU-hours of each stage; without rows if the run has no events."""
    header = ["stage", "waited (s)", "ran (s)", "GPUs", "GPU-hours", "mean W", "peak W"]
    rows = [
        [it.stage, quantity(it.waited_s), quantity(it.ran_s), str(it.gpus)]
        + [quantity(figure) for figure in (it.gpu_hours, it.mean_w, it.peak_w)]
        for it in data.uses
    ]
    if rows:
        rows.append(["all stages", "", "", "", quantity(sum(it.gpu_hours for it in data.uses)), "", ""])
    return Table("Used when this page was written", header, rows)


def _flat_table(title: str, plain: Mapping[str, Any], *, words: bool = False) -> Table:
    """Return a row for each value of a mapping; with ``words`` its keys are shown as words."""
    rows = [[key.replace("_", " ") if words else key, value] for key, value in flat(plain)]
    return Table(title, ["what", "value"], rows, numeric=False)


def _error_table(data: ReportData) -> Table:
    errors = sorted(data.measurement.errors.items(), key=lambda item: -item[1])
    rows = [[cut(kind), f"{count:,}"] for kind, count in errors[:_MOST_ERRORS]]
    if len(errors) > _MOST_ERRORS:
        others = sum(count for _, count in errors[_MOST_ERRORS:])
        rows.append([f"{len(errors) - _MOST_ERRORS} other kinds", f"{others:,}"])
    return Table("Errors of measured requests", ["error", "requests"], rows, numeric=False)


def flat(plain: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield nested keys joined by dots, with values as text."""
    for key, value in plain.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{name}.")
        elif isinstance(value, (list, tuple)):
            yield name, cut(", ".join(map(str, value))) or NONE
        else:
            yield name, NONE if value is None or value == {} else cut(str(value))
