"""Tables of a run's results."""

from __future__ import annotations

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
_WIDTH_OF_FILES = 240


def benchmark_table(summary: dict[str, Any]) -> Table:
    """The benchmark's summary (``results/benchmark.json``) as one table of two parts."""
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
    for part in (_totals(summary), _latencies(summary)):
        whole.add_row("")
        whole.add_row(part)
    for kind, sentences in (("not valid", summary["findings"]), ("note", summary["warnings"])):
        for sentence in sentences:
            whole.add_row(Text(f"{kind}: {sentence}"))
    return whole


def _totals(summary: dict[str, Any]) -> Table:
    requests, metrics = summary["requests"], summary["metrics"]
    cells = {
        "requests": str(requests["asked"]),
        "failed": str(requests["failed"]),
        "asked (1/s)": f"{summary['asked_rate_per_s']:.2f}",
        "sent (1/s)": _number(metrics.get("sent_rate_per_s"), 2),
        "finished (1/s)": _number(metrics.get("finished_rate_per_s"), 2),
        "output (tokens)": _number(summary["tokens"]["output"], 0),
        "output (tokens/s)": _number(metrics.get("output_tokens_per_s"), 1),
    }
    table = _table()
    for header in cells:
        table.add_column(header, justify="right")
    table.add_row(*cells.values())
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


def print_table(table: Table) -> None:
    """Print a table: as wide as the terminal, or as it likes to be into a pipe or a file."""
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(table)
    else:
        sys.stdout.write(as_text(table, _WIDTH_OF_FILES))
