"""The table of a run's logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trtllm_hpc.logs.errors import first_error_line
from trtllm_hpc.logs.files import LogFile
from trtllm_hpc.logs.text import neutralised

if TYPE_CHECKING:
    from rich.table import Table


def log_rows(logs: Sequence[LogFile]) -> list[dict[str, Any]]:
    """One plain JSON object for each log."""
    return [
        {
            "step": log.step,
            "rank": log.rank,
            "host": log.host,
            "state": log.state,
            "size_bytes": log.size_bytes,
            "first_error": first_error_line(log.path),
            "path": str(log.path),
        }
        for log in logs
    ]


def log_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The rows of :func:`log_rows` as a table."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("step")
    table.add_column("rank", justify="right")
    table.add_column("host")
    table.add_column("state", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("first error", overflow="fold")
    for row in rows:
        cells = (row["step"], row["rank"], row["host"], row["state"], size_words(row["size_bytes"]))
        table.add_row(*("-" if cell is None else str(cell) for cell in cells), Text(_error(row)))
    return table


def size_words(size_bytes: int | None) -> str | None:
    """A size as people read it: ``512 B``, ``1.5 KiB``..."""
    if size_bytes is None:
        return None
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _error(row: dict[str, Any]) -> str:
    return neutralised(row["first_error"] or "")
