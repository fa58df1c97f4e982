"""What the cache says of a run's engine, for ``render`` and ``submit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtllm_hpc.runtime.engine_cache.lookup import Hit, Miss, Unknown


def engine_lines(found: Hit | Miss | Unknown | None) -> list[str]:
    """What to tell a person; nothing for a run that needs no engine of its own."""
    from trtllm_hpc.runtime.engine_cache.lookup import Hit, Unknown

    if found is None:
        return []
    if isinstance(found, Unknown):
        return [f"engine: the job will look in the cache ({found.reason})"]
    if isinstance(found, Hit):
        return [f"engine: found in the cache ({_built(found)}), nothing to build"]
    return _missed(found)


def _built(hit: Hit) -> str:
    from trtllm_hpc.report.engines import moment, span

    made = hit.manifest
    job = f" by job {made.job_id}" if made.job_id else ""
    return f"{hit.entry.name}, built {moment(made.built_at)}{job} on {made.host} in {span(made.seconds)}"


def _missed(miss: Miss) -> list[str]:
    rest = f"; of its steps, {', '.join(miss.found)} is there" if miss.found else ""
    if miss.broken:
        lines = [f"engine: broken in the cache ({miss.broken[0]}), it is built anew{rest}"]
    else:
        lines = [f"engine: not in the cache, it is built first ({miss.key.name}){rest}"]
    if miss.nearest is not None and not miss.broken:
        lines.append(f"  the nearest is {miss.nearest.name}:")
        lines += [f"    {part}" for part in miss.differences]
    return lines


def engine_json(found: Hit | Miss | Unknown | None) -> dict[str, Any] | None:
    """The same as JSON types."""
    from trtllm_hpc.runtime.engine_cache.lookup import Hit, Unknown

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
