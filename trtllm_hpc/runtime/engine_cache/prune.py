"""Removing what nobody needs, and nothing else."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trtllm_hpc.runtime.engine_cache.cache import Cache, Entry, remove
from trtllm_hpc.runtime.engine_cache.lock import (
    DEAD_VARIABLE,
    POLL_VARIABLE,
    Lock,
    Owner,
    Watch,
    highest,
    seconds,
    try_lock,
)
from trtllm_hpc.runtime.engine_cache.survey import BUILDING, CLOSED, HALF_BUILT, WHOLE, Item, look
from trtllm_hpc.runtime.engine_cache.uses import Use, sweep, uses_of

IsActive = Callable[[Use], str | None]
"""Why a use still counts, in words; ``None`` if it does not."""

_DAY_S = 86_400.0


@dataclass(frozen=True)
class Wish:
    """What may go. An entry that any of these names is a candidate."""

    names: tuple[str, ...] = ()
    """Beginnings of names, or of keys."""
    unused_days: float | None = None
    keep_bytes: int | None = None
    half_built: bool = False
    """Also what is broken, or was left by something that was killed."""

    def __bool__(self) -> bool:
        return bool(self.names or self.half_built) or (self.unused_days, self.keep_bytes) != (None, None)


@dataclass(frozen=True)
class Verdict:
    """What becomes of one entry."""

    item: Item
    why: str
    """Why it may go."""
    kept: str | None = None
    """Why it stays all the same."""


Watches = dict[str, Watch]
"""By entry: who watched a builder long enough need not begin anew."""


def watch_builders(items: Sequence[Item], tell: Callable[[str], None]) -> tuple[list[Item], Watches]:
    """Find out which of the builders that seem to live are dead.

    One that lives counts up within seconds; only silence takes its time. Those
    on other nodes are watched together.
    """
    watches = {item.entry.name: Watch() for item in items if item.state == BUILDING}
    open_cases = {item.entry.name: highest(item.entry.folder) for item in items if item.state == BUILDING}
    dead: set[str] = set()
    if open_cases:
        tell(
            f"watching {len(open_cases)} builder(s) for a sign of life, up to {seconds(DEAD_VARIABLE):.0f} s"
        )
    while open_cases:
        for item in items:
            first = open_cases.get(item.entry.name)
            if item.entry.name not in open_cases:
                continue
            held = highest(item.entry.folder)
            if watches[item.entry.name].is_free(held):
                dead.add(item.entry.name)
            elif held == first:
                continue  # no sign of life yet
            del open_cases[item.entry.name]
        time.sleep(seconds(POLL_VARIABLE) if open_cases else 0)
    known = [look(item.entry) if item.entry.name in watches else item for item in items]
    return [
        replace(item, state=HALF_BUILT, note="its builder is dead") if item.entry.name in dead else item
        for item in known
    ], watches


def judge(items: Sequence[Item], wish: Wish, is_active: IsActive) -> list[Verdict]:
    """The candidates, each with what protects it; ``items`` come last used first."""
    return [Verdict(item, why, _protected(item, is_active)) for item, why in _candidates(items, wish)]


def _candidates(items: Sequence[Item], wish: Wish) -> Iterator[tuple[Item, str]]:
    kept_bytes = 0
    for item in items:
        name = item.entry.name
        unused_s = time.time() - (item.last_used or 0.0)
        kept_bytes += item.size
        if any(starts(name, wanted) for wanted in wish.names):
            yield item, "is named"
        elif item.state != WHOLE:
            if wish.half_built and item.state != CLOSED:
                yield item, f"is {item.state}"
        elif wish.unused_days is not None and unused_s > wish.unused_days * _DAY_S:
            yield item, f"was not used for {unused_s / _DAY_S:.0f} days"
        elif wish.keep_bytes is not None and kept_bytes > wish.keep_bytes:
            yield item, "is more than may stay, and was used least lately"
            kept_bytes -= item.size


def starts(name: str, wanted: str) -> bool:
    """Whether an entry's name, or the key in it, begins like that."""
    return bool(wanted) and (name.startswith(wanted) or name.rpartition("-")[2].startswith(wanted))


def forget(cache: Cache, is_active: IsActive) -> None:
    """Strike out the uses that count no more: every run leaves one, and every prune asks after each."""
    for entry in cache.entries():
        for use in uses_of(entry):
            if is_active(use) is None:
                remove(use.file)


def _protected(item: Item, is_active: IsActive) -> str | None:
    if item.state == BUILDING:
        return f"is being built {item.note}"
    return _used(item.entry, is_active)


def _used(entry: Entry, is_active: IsActive) -> str | None:
    return next((why for use in uses_of(entry) if (why := is_active(use)) is not None), None)


def prune(cache: Cache, verdict: Verdict, is_active: IsActive, watches: Watches) -> Verdict:
    """Remove one entry; returns the verdict as it turned out.

    The entry is taken out under one rename, with its lock held so that nobody
    begins to build in it, and only then are its uses looked at for the last
    time: who registers later finds the output gone.
    """
    entry = verdict.item.entry
    if verdict.kept is not None:
        return verdict
    owner = Owner.this_process("prune", "", os.environ.get("SLURM_JOB_ID", ""))
    try:
        lock = try_lock(entry.folder, owner, watches.get(entry.name, Watch()))
        if not isinstance(lock, Lock):
            return replace(verdict, kept=f"is being built by {lock.owner or 'somebody'}")
        try:
            aside = cache.put_aside(entry.folder)
        finally:
            lock.release()
    except FileNotFoundError:
        return verdict  # somebody else has removed it
    except OSError as error:
        return replace(verdict, kept=f"cannot be removed: {error.strerror}")
    kept = _used(Entry(aside), is_active)
    if kept is not None and not entry.folder.exists():
        aside.rename(entry.folder)
        return replace(verdict, kept=kept)
    return verdict if remove(aside) else replace(verdict, kept=f"could not be removed whole: {aside}")


def tidy(cache: Cache) -> list[Path]:
    """Remove what a killed removal or a killed build has left where nothing is built; returns it."""
    swept = [path for entry in cache.entries() for path in sweep(entry)]
    return [*(path for path in cache.removed() if remove(path)), *swept]
