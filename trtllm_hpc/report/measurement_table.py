"""The table of a measurement: one row for each level, then the latencies of the headline level."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from trtllm_hpc.bench.records import RequestRecord
from trtllm_hpc.bench.results import Interval, LevelResult, Measurement
from trtllm_hpc.report.adapters import HEADER, adapter_rows
from trtllm_hpc.report.formatting import NONE, plus_minus, quantity
from trtllm_hpc.report.headline import ascending_levels, headline_level, is_valid, level_labels
from trtllm_hpc.report.sentences import sentences, title
from trtllm_hpc.report.tables import NARROW, as_text, plain_table, print_table, terminal_width

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


def print_measurement(measurement: Measurement, records: Sequence[RequestRecord] = ()) -> None:
    """Print the table, in its narrow form where the terminal is narrow."""
    width = terminal_width()
    if width is None:
        sys.stdout.write(measurement_text(measurement, records))
    else:
        print_table(measurement_table(measurement, records, narrow=width < NARROW))


def measurement_text(measurement: Measurement, records: Sequence[RequestRecord] = ()) -> str:
    """The table as plain text."""
    return as_text(measurement_table(measurement, records), _WIDTH)


def measurement_table(
    measurement: Measurement, records: Sequence[RequestRecord] = (), *, narrow: bool = False
) -> Table:
    """Return the whole table. A ``narrow`` one, of 60 columns, has fewer figures.

    ``records`` are needed only for the rows of each LoRA adapter.
    """
    whole = Table.grid()
    whole.add_row(Text(title(measurement)))
    whole.add_row("")
    whole.add_row(_levels(measurement, narrow))
    level = headline_level(measurement)
    if level is not None:
        whole.add_row("")
        whole.add_row(_latencies(measurement, level, narrow))
        rows = adapter_rows(measurement, records, level)
        if rows and not narrow:
            whole.add_row("")
            whole.add_row(_by_adapter(rows))
    whole.add_row("")
    for sentence in sentences(measurement):
        whole.add_row(Text(sentence))
    return whole


def _levels(measurement: Measurement, narrow: bool) -> Table:
    figures = _figures_of(measurement, narrow)
    table = plain_table()
    table.collapse_padding = True
    table.add_column("level")
    for header in ("failed", *figures):
        table.add_column(header, justify="right")
    labels = level_labels(measurement)
    for place in ascending_levels(measurement):
        label, result = labels[place], measurement.levels[place]
        failed, measured = (sum(getattr(one, key) for one in result.passes) for key in ("failed", "measured"))
        row = [label if is_valid(result) else f"{label} !"]
        row += [f"{failed:,}" if narrow else f"{failed:,} of {measured:,}"]
        row += [_figure(result, *_LEVEL_FIGURES[header]) for header in figures]
        table.add_row(*row)
    return table


def _figures_of(measurement: Measurement, narrow: bool) -> list[str]:
    """The headers of those figures that there are; where there is an SLO, goodput takes the place of tokens
    in the narrow form."""
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


def _latencies(measurement: Measurement, level: int, narrow: bool) -> Table:
    result = measurement.levels[level]
    repeated = len(result.passes) > 1
    statistics = ("p50", "p99", "max") if narrow else ("mean", "p50", "p90", "p95", "p99", "max")
    table = plain_table()
    table.add_column(f"at {level_labels(measurement)[level]}")
    for statistic in statistics:
        table.add_column(statistic, justify="right", min_width=6)
        if repeated and statistic == "p99" and not narrow:
            table.add_column("", justify="right")
    for key, name in _LATENCIES.items():
        figures = result.metrics.get(key)
        if figures is None and result.metrics:
            continue  # of answers that were not streamed there are no times of tokens
        row = []
        for statistic in statistics:
            interval = figures.get(statistic) if isinstance(figures, dict) else None
            row.append(quantity(interval.mean) if interval else NONE)
            if repeated and statistic == "p99" and not narrow:
                row.append(plus_minus(interval) if interval else "")
        table.add_row(name, *row)
    return table


def _by_adapter(rows: Sequence[Sequence[str]]) -> Table:
    table = plain_table()
    for place, header in enumerate(HEADER):
        table.add_column(header, justify="right" if place else "left")
    for row in rows:
        table.add_row(*row)
    return table
