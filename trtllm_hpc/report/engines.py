"""The tables of the engine cache."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from trtllm_hpc.runtime.engine_cache.survey import Item

OPTIONAL_COLUMNS = ("model", "last used", "layout", "version", "built", "backend")
"""Columns that a narrow terminal may do without; the last goes first."""

_STYLES = {"whole": "green", "building": "cyan", "half-built": "yellow", "broken": "red"}


def engines_table(items: Sequence[Item]) -> Table:
    """One row for each entry."""
    from rich.text import Text

    from trtllm_hpc.report.tables import plain_table

    table = plain_table(
        *("name", "model", "backend", "version", "layout", "size", "built", "last used", "state"),
        right=("size",),
        one_line=("name", "size"),
    )
    for item in items:
        about = [Text(item.about.get(name) or "-") for name in ("model", "backend", "version", "layout")]
        size = in_bytes(item.size) if item.manifest else "-"
        times = [moment(item.manifest.built_at if item.manifest else None), moment(item.last_used)]
        state = Text(item.state, style=_STYLES.get(item.state, ""))
        state.append(state_of(item)[len(item.state) :], style="")
        table.add_row(item.entry.name, *about, size, *times, state)
    return table


def state_of(item: Item) -> str:
    """The state and who or what made it so, in words."""
    if not item.note:
        return item.state
    return f"{item.state}: {item.note}" if item.state == "broken" else f"{item.state} {item.note}"


def moment(seconds: float | None) -> str:
    """A time as this person's clock shows it."""
    return "-" if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def span(seconds: float) -> str:
    """A length of time, roughly."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def in_bytes(count: float) -> str:
    """A size, in the largest unit that leaves a number above 1."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
