"""What the engine cache has for a run, as text and as a record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trtllm_hpc.report.formatting import format_duration, format_time

if TYPE_CHECKING:
    from trtllm_hpc.engine_cache.lookup import Hit, Miss, Unknown


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
    rest = f"; of its steps, {', '.join(found.found)} is there" if found.found else ""
    if found.broken:
        return [f"engine: broken in the cache ({found.broken[0]}), it is built again{rest}"]
    lines = [f"engine: not in the cache, it is built first ({found.key.name}){rest}"]
    if found.nearest is not None:
        lines.append(f"  the nearest is {found.nearest.name}:")
        lines += [f"    {part}" for part in found.differences]
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


def engine_record(found: Hit | Miss | Unknown | None) -> CachedEngine | None:
    """Return what the cache has as a record for JSON."""
    from trtllm_hpc.engine_cache.lookup import Hit, Unknown

    if found is None:
        return None
    if isinstance(found, Unknown):
        return CachedEngine("unknown")
    if isinstance(found, Hit):
        return CachedEngine("found", found.entry.name, str(found.entry.output))
    return CachedEngine("missed", found.key.name)
