"""The engine cache as tables and text: its list, and what it has for a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trtllm_hpc.report.formatting import format_bytes, format_duration, format_time

if TYPE_CHECKING:
    from rich.table import Table

    from trtllm_hpc.engine_cache.listing import EngineRow
    from trtllm_hpc.engine_cache.lookup import Hit, Miss, Unknown

OPTIONAL_COLUMNS = ("model", "last used", "layout", "version", "built", "backend")
"""Columns that a narrow terminal may do without; the last goes first."""

_STYLES = {"whole": "green", "building": "cyan", "half-built": "yellow", "broken": "red"}


def engines_table(rows: Sequence[EngineRow]) -> Table:
    """Return a table with one row for each entry."""
    from rich.text import Text

    from trtllm_hpc.report.tables import plain_table

    table = plain_table(
        *("name", "model", "backend", "version", "layout", "size", "built", "last used", "state"),
        right=("size",),
        one_line=("name", "size"),
    )
    for row in rows:
        about = [Text(value or "-") for value in (row.model, row.backend, row.version, row.layout)]
        size = format_bytes(row.bytes) if row.built_at is not None else "-"
        times = [format_time(row.built_at), format_time(row.last_used)]
        state = Text(row.state, style=_STYLES.get(row.state, ""))
        state.append(state_of(row)[len(row.state) :], style="")
        table.add_row(row.name, *about, size, *times, state)
    return table


def state_of(row: EngineRow) -> str:
    """Return the state with its builder or its fault."""
    if not row.note:
        return row.state
    return f"{row.state}: {row.note}" if row.state == "broken" else f"{row.state} {row.note}"


def engine_lines(found: Hit | Miss | Unknown | None) -> list[str]:
    """Return what `render` and `submit` print; nothing for a run that needs no engine from the cache."""
    from trtllm_hpc.engine_cache.lookup import Hit, Unknown

    if found is None:
        return []
    if isinstance(found, Unknown):
        return [f"engine: the job will look in the cache ({found.reason})"]
    if isinstance(found, Hit):
        made = found.manifest
        job = f" by job {made.job_id}" if made.job_id else ""
        built = f"built {format_time(made.built_at)}{job} on {made.host} in {format_duration(made.seconds)}"
        return [f"engine: found in the cache ({found.entry.name}, {built}), nothing to build"]
    return _miss_lines(found)


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


@dataclass(frozen=True)
class FoundEngine:
    """The engine is in the cache: there is nothing to build."""

    state: Literal["found"]
    name: str
    """Its name in ``engines list``."""
    folder: str


@dataclass(frozen=True)
class MissedEngine:
    """The engine is not in the cache: the job builds it first."""

    state: Literal["missed"]
    name: str
    """The name that it will have in ``engines list``."""
    nearest: str | None
    """The engine in the cache that differs least."""
    differences: tuple[str, ...]
    """In what, a line each."""
    steps_found: tuple[str, ...]
    """Steps of the build whose output is in the cache."""
    broken: tuple[str, ...]
    """What is wrong with the engine of that name, which is therefore built again."""


@dataclass(frozen=True)
class UnknownEngine:
    """This machine cannot tell: the job looks in the cache itself."""

    state: Literal["unknown"]
    reason: str


def engine_record(found: Hit | Miss | Unknown | None) -> FoundEngine | MissedEngine | UnknownEngine | None:
    """Return the same as a record for JSON."""
    from trtllm_hpc.engine_cache.lookup import Hit, Unknown

    if found is None:
        return None
    if isinstance(found, Unknown):
        return UnknownEngine("unknown", found.reason)
    if isinstance(found, Hit):
        return FoundEngine("found", found.entry.name, str(found.entry.output))
    nearest = found.nearest.name if found.nearest else None
    return MissedEngine("missed", found.key.name, nearest, found.differences, found.found, found.broken)
