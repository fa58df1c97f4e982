"""The table of a measurement: one row for each level, then the latencies of the headline level."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence

from trtllm_hpc.bench.records import RequestRecord
from trtllm_hpc.bench.results import Interval, LevelResult, MeasurementSummary
from trtllm_hpc.report.adapters import HEADER, adapter_rows
from trtllm_hpc.report.formatting import NONE, plus_minus, quantity
from trtllm_hpc.report.headline import ascending_levels, headline_level, is_valid, level_labels
from trtllm_hpc.report.sentences import sentences, title
from trtllm_hpc.report.tables import NARROW, Table, as_text, terminal_width

_WIDTH = 100
_LATENCIES = {
    "ttft_ms": "TTFT (ms)",
    "tpot_ms": "TPOT (ms)",
    "itl_ms": "ITL (ms)",
    "latency_ms": "latency (ms)",
    "latency_from_send_ms": "from send (ms)",
    "client_lateness_ms": "client late (ms)",
}
_GOODPUT, _TOKENS = "goodput\n(1/s)", "tokens\n(1/s)"
_LEVEL_FIGURES = {
    "finished\n(1/s)": ("finished_rate_per_s", None),
    _GOODPUT: ("goodput_per_s", None),
    _TOKENS: ("output_tokens_per_s", None),
    "TTFT\np50": ("ttft_ms", "p50"),
    "TTFT\np99": ("ttft_ms", "p99"),
    "TPOT\np50": ("tpot_ms", "p50"),
    "latency\np50": ("latency_ms", "p50"),
    "latency\np99": ("latency_ms", "p99"),
}
_FEW_FIGURES = ("finished\n(1/s)", _GOODPUT, _TOKENS, "TTFT\np99", "latency\np99")


def print_measurement(measurement: MeasurementSummary, records: Sequence[RequestRecord] = ()) -> None:
    """Print the table, in its narrow form where the terminal is narrow."""
    sys.stdout.write(measurement_text(measurement, records, terminal_width() or _WIDTH))


def measurement_text(
    measurement: MeasurementSummary, records: Sequence[RequestRecord] = (), width: int = _WIDTH
) -> str:
    """Return what there is to say of a measurement, in ``width`` columns, of which it needs 60.

    ``records`` are needed only for the rows of each LoRA adapter. Fewer than 100 columns have fewer figures.
    """
    narrow = width < NARROW
    tables = [_levels(measurement, narrow)]
    level = headline_level(measurement)
    if level is not None:
        tables.append(_latencies(measurement, level, narrow))
        rows = adapter_rows(measurement, records, level)
        if rows and not narrow:
            tables.append(_by_adapter(rows))
    lines = [textwrap.fill(sentence, width, break_on_hyphens=False) for sentence in sentences(measurement)]
    parts = (title(measurement), *(as_text(table, width).rstrip("\n") for table in tables), "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _levels(measurement: MeasurementSummary, narrow: bool) -> Table:
    figures = _figures_of(measurement, narrow)
    table = Table("level", "failed", *figures, right=("failed", *figures), gap=2)
    labels = level_labels(measurement)
    for place in ascending_levels(measurement):
        label, result = labels[place], measurement.levels[place]
        failed, measured = (sum(getattr(one, key) for one in result.passes) for key in ("failed", "measured"))
        table.add_row(
            label if is_valid(result) else f"{label} !",
            f"{failed:,}" if narrow else f"{failed:,} of {measured:,}",
            *(_figure(result, *_LEVEL_FIGURES[header]) for header in figures),
        )
    return table


def _figures_of(measurement: MeasurementSummary, narrow: bool) -> list[str]:
    """Return the headers of the figures that were measured.

    In the narrow form goodput, where there is an SLO, takes the place of tokens.
    """
    known = {key for result in measurement.levels for key in result.metrics}
    figures = [
        header
        for header in (_FEW_FIGURES if narrow else _LEVEL_FIGURES)
        if (_LEVEL_FIGURES[header][0] in known) or (not known and header != _GOODPUT)
    ]
    return [header for header in figures if not (narrow and _GOODPUT in figures and header == _TOKENS)]


def _figure(result: LevelResult, key: str, statistic: str | None) -> str:
    found = result.metrics.get(key)
    figure = found.get(statistic) if isinstance(found, dict) and statistic else found
    return quantity(figure.mean) if isinstance(figure, Interval) else NONE


def _latencies(measurement: MeasurementSummary, level: int, narrow: bool) -> Table:
    result = measurement.levels[level]
    statistics = ("p50", "p99", "max") if narrow else ("mean", "p50", "p90", "p95", "p99", "max")
    margin = "± of p99"
    headers = list(statistics)
    if len(result.passes) > 1 and not narrow:
        headers.insert(headers.index("p99") + 1, margin)
    table = Table(
        *(f"at {level_labels(measurement)[level]}", *headers),
        right=headers,
        least=dict.fromkeys(statistics, 6),
    )
    for key, name in _LATENCIES.items():
        figures = result.metrics.get(key)
        if figures is None and result.metrics:
            continue  # of answers that were not streamed there are no times of tokens
        known = figures if isinstance(figures, dict) else {}
        cells = {
            statistic: quantity(known[statistic].mean) if statistic in known else NONE
            for statistic in statistics
        }
        cells[margin] = plus_minus(known["p99"]) if "p99" in known else ""
        table.add_row(name, *(cells[header] for header in headers))
    return table


def _by_adapter(rows: Sequence[Sequence[str]]) -> Table:
    table = Table(*HEADER, right=HEADER[1:])
    for row in rows:
        table.add_row(*row)
    return table
