"""What the engine cache has for a run, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtllm_hpc.report.formatting import format_duration, format_time

if TYPE_CHECKING:
    from trtllm_hpc.engine_cache import CachedEngine


def engine_lines(found: CachedEngine | None) -> list[str]:
    """Return what `render` and `submit` print; nothing for a run that needs no engine from the cache."""
    if found is None:
        return []
    if found.state == "unknown":
        return [f"engine: the job will look in the cache ({found.reason})"]
    if found.state == "found":
        built = ""
        if (made := found.entries[-1].manifest()) is not None:
            job = f" by job {made.job_id}" if made.job_id else ""
            took = format_duration(made.seconds)
            built = f", built {format_time(made.built_at)}{job} on {made.host} in {took}"
        return [f"engine: found in the cache ({found.name}{built}), nothing to build"]
    rest = f"; of its steps, {', '.join(found.steps_found)} is there" if found.steps_found else ""
    if found.broken:
        return [f"engine: broken in the cache ({found.broken[0]}), it is built again{rest}"]
    lines = [f"engine: not in the cache, it is built first ({found.name}){rest}"]
    if found.nearest is not None:
        lines += [f"  the nearest is {found.nearest}:", *(f"    {part}" for part in found.differences)]
    return lines
