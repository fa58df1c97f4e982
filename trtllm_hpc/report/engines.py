"""The engine cache as tables and text: its list, and what it has for a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trtllm_hpc.report.formatting import NONE, format_bytes, format_duration, format_time
from trtllm_hpc.report.tables import Table

if TYPE_CHECKING:
    from trtllm_hpc.engine_cache.listing import Item
    from trtllm_hpc.engine_cache.lookup import Hit, Miss, Unknown

_STYLES = {"whole": "green", "building": "cyan", "half-built": "yellow", "broken": "red"}


def engines_table(items: Sequence[Item]) -> Table:
    """Return a table with one row for each entry."""
    table = Table(
        *("name", "model", "backend", "version", "layout", "size", "built", "last used", "state"),
        right=("size",),
        one_line=("name", "size"),
        optional=("model", "last used", "layout", "version", "built", "backend"),
    )
    for item in items:
        about = [item.about.get(name) or NONE for name in ("model", "backend", "version", "layout")]
        size = format_bytes(item.size) if item.manifest else "-"
        times = [format_time(item.manifest.built_at if item.manifest else None), format_time(item.last_used)]
        table.add_row(item.entry.name, *about, size, *times, (state_of(item), _STYLES.get(item.state, "")))
    return table


def state_of(item: Item) -> str:
    """Return the state with its builder or its fault."""
    if not item.note:
        return item.state
    return f"{item.state}: {item.note}" if item.state == "broken" else f"{item.state} {item.note}"


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
class CachedEngine:
    """What the cache has for a run."""

    state: Literal["found", "missed", "unknown"]
    """``found``: there is nothing to build. ``missed``: the job builds the engine first. ``unknown``: this
    machine cannot tell, and the job looks in the cache itself."""
    name: str | None = None
    """The name that it has, or will have, in ``engines list``."""
    folder: str | None = None
    """Where it is, if it was found."""
    nearest: str | None = None
    """If it was missed: the engine in the cache that differs least."""
    differences: tuple[str, ...] = ()
    """How ``nearest`` differs, a line for each part."""
    steps_found: tuple[str, ...] = ()
    """Steps of the build whose output is in the cache."""
    broken: tuple[str, ...] = ()
    """What is wrong with the engine of that name, which is therefore built again."""
    reason: str | None = None
    """Why the state is unknown."""


def engine_record(found: Hit | Miss | Unknown | None) -> CachedEngine | None:
    """Return what the cache has as a record for JSON."""
    from trtllm_hpc.engine_cache.lookup import Hit, Unknown

    if found is None:
        return None
    if isinstance(found, Unknown):
        return CachedEngine("unknown", reason=found.reason)
    if isinstance(found, Hit):
        return CachedEngine("found", found.entry.name, str(found.entry.output))
    nearest = found.nearest.name if found.nearest else None
    return CachedEngine("missed", found.key.name, None, nearest, found.differences, found.found, found.broken)
