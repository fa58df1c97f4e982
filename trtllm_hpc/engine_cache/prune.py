"""Remove entries that no run needs, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from trtllm_hpc.engine_cache.listing import EngineRow
from trtllm_hpc.runtime.engine_cache.cache import Cache, Entry, Use
from trtllm_hpc.runtime.engine_cache.files import remove
from trtllm_hpc.runtime.engine_cache.lock import find_holder

IsActive = Callable[[Use], str | None]
"""Returns why a use still counts; ``None`` if it does not."""

_DAY_S = 86_400.0


@dataclass(frozen=True)
class Selection:
    """Which entries to remove: those that match any of these."""

    names: tuple[str, ...] = ()
    """Beginnings of names, or of keys."""
    unused_s: float | None = None
    keep_bytes: int | None = None
    half_built: bool = False
    """What is broken, or was left by a killed build."""

    def __bool__(self) -> bool:
        return bool(self.names or self.half_built) or (self.unused_s, self.keep_bytes) != (None, None)


@dataclass(frozen=True)
class Decision:
    """What happens to one selected entry."""

    row: EngineRow
    reason: str
    """Why it was selected."""
    kept: str | None = None
    """Why it stays nevertheless."""


def decide(rows: Sequence[EngineRow], selection: Selection, is_active: IsActive) -> list[Decision]:
    """Return the selected entries, each with what protects it; ``rows`` are sorted by last use."""
    return [
        Decision(
            row,
            reason,
            f"is being built {row.note}" if row.state == "building" else _active_use(row.entry, is_active),
        )
        for row, reason in _select(rows, selection)
    ]


def _select(rows: Sequence[EngineRow], selection: Selection) -> Iterator[tuple[EngineRow, str]]:
    kept_bytes = 0
    for row in rows:
        name = row.name
        unused_s = time.time() - (row.last_used or 0.0)
        kept_bytes += row.bytes
        if any(starts_with(name, beginning) for beginning in selection.names):
            yield row, "is named"
        elif row.state != "whole":
            if selection.half_built and row.state != "unreadable":
                yield row, f"is {row.state}"
        elif selection.unused_s is not None and unused_s > selection.unused_s:
            yield row, f"was not used for {unused_s / _DAY_S:.0f} days"
        elif selection.keep_bytes is not None and kept_bytes > selection.keep_bytes:
            yield row, "is above the size to keep, and among the least recently used"
            kept_bytes -= row.bytes


def starts_with(name: str, beginning: str) -> bool:
    """Return whether an entry's name, or the key in it, begins with ``beginning``."""
    return bool(beginning) and (name.startswith(beginning) or name.rpartition("-")[2].startswith(beginning))


def _active_use(entry: Entry, is_active: IsActive) -> str | None:
    return next((why for use in entry.uses() if (why := is_active(use)) is not None), None)


def prune(cache: Cache, decision: Decision, is_active: IsActive) -> Decision:
    """Remove one entry; returns the decision as it turned out.

    It is moved away with one rename. Only then are its uses read for the last time: a run that
    registers later misses the output. A build that begins in the moment before the rename loses
    its lock with the folder, and begins again.
    """
    entry = decision.row.entry
    if decision.kept is not None:
        return decision
    builder = find_holder(entry.folder)
    if builder is not None and not builder.is_abandoned():
        return replace(decision, kept=f"is being built by {builder}")
    try:
        aside = cache.put_aside(entry)
    except FileNotFoundError:
        return decision  # already removed
    except OSError as error:
        return replace(decision, kept=f"cannot be removed: {error.strerror}")
    kept = _active_use(Entry(aside), is_active)
    if kept is not None and not entry.folder.exists():
        aside.rename(entry.folder)
        return replace(decision, kept=kept)
    return decision if remove(aside) else replace(decision, kept=f"could not be removed completely: {aside}")


def forget_uses(cache: Cache, is_active: IsActive) -> None:
    """Remove the notes of runs that no longer count, so that later calls need not ask for them again."""
    for entry in cache.entries():
        for use in entry.uses():
            if is_active(use) is None:
                remove(use.file)
