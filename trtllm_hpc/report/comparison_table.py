"""Two measurements side by side, for a terminal."""

from __future__ import annotations

from trtllm_hpc.bench.analysis.compare import ComparedFigure, Comparison
from trtllm_hpc.report.formatting import NONE, quantity, share
from trtllm_hpc.report.tables import Table, print_table, terminal_width, wrap

_INTERVAL = "95 % of B - A"
_NAMES = {"ttft_ms": "TTFT", "ttfa_ms": "TTFA", "tpot_ms": "TPOT", "itl_ms": "ITL"}
_NAMES |= {"finished_rate_per_s": "finished", "output_tokens_per_s": "output", "total_tokens_per_s": "total"}
"""Short names of metrics, so that a figure has one line in 80 columns."""


def print_comparison(comparison: Comparison) -> None:
    """Print the table below its remarks; a narrow terminal does without the interval."""
    print(wrap("\n".join(remarks(comparison)), terminal_width()))
    print_table(comparison_table(comparison))


def comparison_table(comparison: Comparison) -> Table:
    """Return a table with a row for each level and figure, and a verdict on each difference if judged."""
    numbers = ("A", "B", "change", _INTERVAL)
    table = Table(
        *("figure", *numbers, "verdict"),
        right=numbers,
        one_line=("figure", _INTERVAL, "verdict"),
        optional=(_INTERVAL,),
    )
    level = None
    for row in comparison.rows:
        if row.level != level:
            level = row.level
            table.add_row((level, "bold"), *[""] * 5)
        table.add_row(
            f"  {_name(row)}",
            _figure(row, row.a),
            _figure(row, row.b),
            NONE if row.change is None else f"{row.change:+.1%}",
            _interval(row),
            (verdict(row), "bold red" if row.regressed else "") if comparison.judged else NONE,
        )
    return table


def remarks(comparison: Comparison) -> list[str]:
    """Return what a reader of the table must know, a line each."""
    lines = [f"A: {comparison.a}", f"B: {comparison.b}"]
    for kind, sentences in (
        ("not valid", comparison.invalid),
        ("different workload", comparison.workload),
        ("different setting", comparison.settings),
        ("different environment", comparison.environment),
        ("note", comparison.notes),
    ):
        lines += [f"{kind}: {sentence}" for sentence in sentences]
    return lines


def verdict(row: ComparedFigure) -> str:
    """Return ``same``, ``better`` or ``worse``, and whether that may be chance."""
    if row.better is None or not row.beyond:
        return "same"
    direction = "better" if row.better else "worse"
    if row.significant is None:
        return f"{direction}, spread unknown"
    return direction if row.significant else f"{direction}, perhaps by chance"


def _name(row: ComparedFigure) -> str:
    name = f"{_NAMES.get(row.key, row.label)} {row.statistic or ''}".rstrip()
    return name if row.unit == "share" else f"{name} ({row.unit})"


def _figure(row: ComparedFigure, value: float) -> str:
    return share(value) if row.unit == "share" else quantity(value)


def _interval(row: ComparedFigure) -> str:
    if row.low is None or row.high is None:
        return NONE
    return f"{_figure(row, row.low)} to {_figure(row, row.high)}"
