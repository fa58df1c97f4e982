"""What is in the cache, and in which state."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trtllm_hpc.paths import write_text
from trtllm_hpc.runtime.engine_cache.cache import Cache, Entry, Manifest
from trtllm_hpc.runtime.engine_cache.lock import DEAD_VARIABLE, Held, living_owner, seconds
from trtllm_hpc.runtime.engine_cache.seal import files_in, sha256_of

WHOLE, BROKEN, BUILDING, HALF_BUILT, CLOSED = "whole", "broken", "building", "half-built", "closed"


@dataclass(frozen=True)
class Item:
    """One entry as a table shows it."""

    entry: Entry
    state: str
    """``whole``, ``broken``, ``building``, ``half-built`` (nobody builds it any more) or ``closed``."""
    note: str
    """Who builds it, or what is broken."""
    about: dict[str, str]
    step: str
    manifest: Manifest | None
    last_used: float | None
    """Seconds since the epoch."""

    @property
    def size(self) -> int:
        """Bytes of the output; 0 if it is not there."""
        return self.manifest.size if self.manifest else 0


def survey(cache: Cache) -> list[Item]:
    """Every entry, that used last coming first."""
    items = [look(entry) for entry in cache.entries()]
    return sorted(items, key=lambda item: (-(item.last_used or 0.0), item.entry.name))


def look(entry: Entry) -> Item:
    """One entry, by its names and sizes."""
    record = entry.key() or {}
    state, note = _state(entry)
    manifest = Manifest.read(entry.output)
    return Item(
        entry=entry,
        state=state,
        note=note,
        about=dict(record.get("about") or {}),
        step=str(record.get("document", {}).get("step", "")),
        manifest=manifest,
        last_used=_last_used(entry, manifest),
    )


def _state(entry: Entry) -> tuple[str, str]:
    try:
        complaints = entry.missing()
    except PermissionError:
        return CLOSED, "to all but its owner"
    if complaints == []:
        return WHOLE, ""
    held = living_owner(entry.folder)
    if held is not None:
        return BUILDING, _by(entry, held)
    return (HALF_BUILT, "nobody builds it") if complaints is None else (BROKEN, "; ".join(complaints))


def _by(entry: Entry, held: Held) -> str:
    """Who builds it. How long ago that owner was last heard of is told and decides nothing: clocks differ."""
    who = f"by {held.owner}" if held.owner else "by somebody"
    try:
        silent_s = time.time() - (entry.folder / f"lock.{held.generation}").stat().st_mtime
    except OSError:
        return who
    return f"{who}, silent for {silent_s:.0f} s" if silent_s > seconds(DEAD_VARIABLE) else who


def _last_used(entry: Entry, manifest: Manifest | None) -> float | None:
    try:
        return entry.used.stat().st_mtime
    except OSError:
        return manifest.built_at if manifest else None


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong in the cache."""

    entry: str
    sentence: str


def verify(entry: Entry, tell: Callable[[str], None] = lambda name: None) -> list[Fault]:
    """Read a finished output whole and compare; an entry without one has nothing to be wrong.

    What is found is noted in the entry, so that no run takes a damaged output for the engine it needs.

    Args:
        tell: called with each file's name before it is read.
    """
    try:
        complaints = entry.missing()
    except PermissionError:
        return [Fault(entry.name, "it may not be read: nothing can be told of it")]
    faults = [sentence] if (sentence := entry.key_fault()) else []
    manifest = Manifest.read(entry.output)
    if manifest is None:
        faults += complaints or []
    else:
        wrong = _wrong_files(entry.output, manifest, tell)
        _note(entry, wrong)
        faults += wrong
    return [Fault(entry.name, sentence) for sentence in faults]


def _note(entry: Entry, wrong: list[str]) -> None:
    """A change of a byte leaves every size as it was: only this note tells of it again."""
    with suppress(OSError):  # a cache that one may only read
        if wrong:
            write_text(entry.damage, "".join(f"{line}\n" for line in wrong), mode=0o644)
        else:
            entry.damage.unlink(missing_ok=True)


def _wrong_files(output: Path, manifest: Manifest, tell: Callable[[str], None]) -> list[str]:
    wrong = []
    there = {str(file.relative_to(output)): file for file in files_in(output)}
    for name, (size, digest) in manifest.files.items():
        file = there.pop(name, None)
        if file is None:
            wrong.append(f"{name} is missing")
            continue
        tell(name)
        try:
            found = file.stat().st_size
            if found != size:
                wrong.append(f"{name} has {found} bytes instead of {size}")
            elif sha256_of(file) != digest:
                wrong.append(f"{name} is not what was built: its SHA-256 differs")
        except OSError as error:
            wrong.append(f"{name} cannot be read: {error.strerror}")
    return [*wrong, *(f"{name} was not built there" for name in there)]
