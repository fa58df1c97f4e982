"""Tables of a run's results."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

_LATENCIES = {
    "latency_from_schedule_ms": "latency from schedule",
    "latency_from_send_ms": "latency from send",
    "client_lateness_ms": "client's own delay",
}
_COLUMNS = ("mean", "p50", "p90", "p99", "max")
_NONE = "-"
_WIDTH_OF_PIPES = 2000
"""Wider than any row: what reads a pipe wants a row a line."""
NARROW = 100
"""Columns of a terminal below which wide tables are set in another way."""


def benchmark_table(summary: dict[str, Any], *, narrow: bool = False) -> Table:
    """The benchmark's summary (``results/benchmark.json``) as one table of two parts.

    Args:
        narrow: for a terminal of 60 columns: rows and columns change places.
    """
    from rich.table import Table
    from rich.text import Text

    whole = Table.grid()
    settings = summary["settings"]
    whole.add_row(
        Text(
            f"{settings['model']} on {summary['endpoint']['host']}: {settings['arrival']} arrivals, "
            f"up to {settings['max_tokens']} output tokens a request"
        )
    )
    parts = (_tall_totals, _tall_latencies) if narrow else (_totals, _latencies)
    for part in parts:
        whole.add_row("")
        whole.add_row(part(summary))
    for kind, sentences in (("not valid", summary["findings"]), ("note", summary["warnings"])):
        for sentence in sentences:
            whole.add_row(Text(f"{kind}: {sentence}"))
    return whole


def _totals(summary: dict[str, Any]) -> Table:
    cells = _figures(summary)
    table = _table()
    for header in cells:
        table.add_column(header, justify="right")
    table.add_row(*cells.values())
    return table


def _tall_totals(summary: dict[str, Any]) -> Table:
    table = _table()
    table.add_column("")
    table.add_column("total", justify="right")
    for header, value in _figures(summary).items():
        table.add_row(header, value)
    return table


def _figures(summary: dict[str, Any]) -> dict[str, str]:
    requests, metrics = summary["requests"], summary["metrics"]
    return {
        "requests": str(requests["asked"]),
        "failed": str(requests["failed"]),
        "asked (1/s)": f"{summary['asked_rate_per_s']:.2f}",
        "sent (1/s)": _number(metrics.get("sent_rate_per_s"), 2),
        "finished (1/s)": _number(metrics.get("finished_rate_per_s"), 2),
        "output (tokens)": _number(summary["tokens"]["output"], 0),
        "output (tokens/s)": _number(metrics.get("output_tokens_per_s"), 1),
    }


def _tall_latencies(summary: dict[str, Any]) -> Table:
    table = _table()
    table.add_column("ms")
    for name in _LATENCIES.values():
        table.add_column(name, justify="right", min_width=9)
    for column in _COLUMNS:
        figures = (summary["metrics"].get(key, {}).get(column) for key in _LATENCIES)
        table.add_row(column, *(_number(figure, 1) for figure in figures))
    return table


def _latencies(summary: dict[str, Any]) -> Table:
    table = _table()
    table.add_column("")
    for column in _COLUMNS:
        table.add_column(f"{column} (ms)", justify="right", min_width=9)
    for key, name in _LATENCIES.items():
        figures = summary["metrics"].get(key, {})
        table.add_row(name, *(_number(figures.get(column), 1) for column in _COLUMNS))
    return table


def _table() -> Table:
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)


def _number(value: float | None, decimals: int) -> str:
    return _NONE if value is None else f"{value:.{decimals}f}"


def as_text(table: Table, width: int = 100) -> str:
    """A table as plain text, without colours or trailing spaces, in a width of ``width`` columns."""
    from io import StringIO

    from rich.console import Console

    text = StringIO()
    Console(file=text, width=width, color_system=None, force_terminal=False).print(table)
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def print_benchmark(summary: dict[str, Any]) -> None:
    """Print the benchmark's table, turned on its side where the terminal is narrow."""
    width = terminal_width()
    if width is not None and width < NARROW:
        print_table(benchmark_table(summary, narrow=True))
    else:
        sys.stdout.write(as_text(benchmark_table(summary)))


def print_table(table: Table) -> None:
    """Print a table: as wide as the terminal, or as it likes to be into a pipe or a file."""
    if terminal_width() is not None:
        from rich.console import Console

        Console().print(table)
    else:
        sys.stdout.write(as_text(table, _WIDTH_OF_PIPES))


def terminal_width() -> int | None:
    """Columns of the terminal on standard output; ``None`` if that is a pipe or a file."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
