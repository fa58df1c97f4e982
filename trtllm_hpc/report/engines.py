"""The engine cache as tables and text: its list, and what it has for a run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from trtllm_hpc.engine_cache.listing import Item
    from trtllm_hpc.engine_cache.lookup import Hit, Miss, Unknown

OPTIONAL_COLUMNS = ("model", "last used", "layout", "version", "built", "backend")
"""Columns that a narrow terminal may do without; the last goes first."""

_STYLES = {"whole": "green", "building": "cyan", "half-built": "yellow", "broken": "red"}


def engines_table(items: Sequence[Item]) -> Table:
    """Return a table with one row for each entry."""
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
    """Return the state with its builder or its fault."""
    if not item.note:
        return item.state
    return f"{item.state}: {item.note}" if item.state == "broken" else f"{item.state} {item.note}"


def moment(seconds: float | None) -> str:
    """Return a time in the local time zone."""
    return "-" if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def span(seconds: float) -> str:
    """Return a rounded duration."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def in_bytes(count: float) -> str:
    """Return a size, in the largest unit that leaves a number above 1."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def engine_lines(found: Hit | Miss | Unknown | None) -> list[str]:
    """Return what `render` and `submit` print; nothing for a run that needs no engine from the cache."""
    from trtllm_hpc.engine_cache.lookup import Hit, Unknown

    if found is None:
        return []
    if isinstance(found, Unknown):
        return [f"engine: the job will look in the cache ({found.reason})"]
    if isinstance(found, Hit):
        return [f"engine: found in the cache ({_origin(found)}), nothing to build"]
    return _miss_lines(found)


def _origin(hit: Hit) -> str:
    made = hit.manifest
    job = f" by job {made.job_id}" if made.job_id else ""
    return f"{hit.entry.name}, built {moment(made.built_at)}{job} on {made.host} in {span(made.seconds)}"


def _miss_lines(miss: Miss) -> list[str]:
    rest = f"; of its steps, {', '.join(miss.found)} is there" if miss.found else ""
    if miss.broken:
        lines = [f"engine: broken in the cache ({miss.broken[0]}), it is built again{rest}"]
    else:
        lines = [f"engine: not in the cache, it is built first ({miss.key.name}){rest}"]
    if miss.nearest is not None and not miss.broken:
        lines.append(f"  the nearest is {miss.nearest.name}:")
        lines += [f"    {part}" for part in miss.differences]
    return lines


def engine_json(found: Hit | Miss | Unknown | None) -> dict[str, Any] | None:
    """Return the same as JSON types."""
    from trtllm_hpc.engine_cache.lookup import Hit, Unknown

    if found is None:
        return None
    if isinstance(found, Unknown):
        return {"state": "unknown", "reason": found.reason}
    if isinstance(found, Hit):
        return {"state": "found", "name": found.entry.name, "folder": str(found.entry.output)}
    return {
        "state": "missed",
        "name": found.key.name,
        "nearest": found.nearest.name if found.nearest else None,
        "differences": list(found.differences),
        "steps_found": list(found.found),
        "broken": list(found.broken),
    }
