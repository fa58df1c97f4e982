"""What is in the cache, in which state, and whether every byte is what was built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from trtllm_hpc.runtime.engine_cache.cache import Cache, Entry, Manifest
from trtllm_hpc.runtime.engine_cache.lock import DEAD_VARIABLE, find_holder, seconds
from trtllm_hpc.runtime.engine_cache.verify import wrong_files

EntryState = Literal["whole", "broken", "building", "half-built", "unreadable"]
WHOLE: EntryState = "whole"
BROKEN: EntryState = "broken"
BUILDING: EntryState = "building"
HALF_BUILT: EntryState = "half-built"
"""Its builder is gone."""
UNREADABLE: EntryState = "unreadable"


@dataclass(frozen=True)
class Item:
    """One row of the list."""

    entry: Entry
    state: EntryState
    note: str
    """Who builds it, or what is broken."""
    about: dict[str, str]
    step: str
    manifest: Manifest | None
    last_used: float | None
    """Seconds since the epoch."""

    @property
    def size(self) -> int:
        """Bytes of the output; 0 without one."""
        return self.manifest.size if self.manifest else 0


@dataclass(frozen=True)
class EngineRow:
    """One output in the cache: an engine, or what another step of a build made."""

    name: str
    """Step and first digits of the key."""
    step: str
    """The step of the build that made it."""
    state: EntryState
    """``half-built``: its builder is gone. ``unreadable``: by this user."""
    note: str
    """Who builds it, or what is broken."""
    model: str | None
    backend: str | None
    version: str | None
    """Of what built it, e.g. of TensorRT-LLM."""
    layout: str | None
    """How ranks share the model, e.g. ``tp 2``."""
    bytes: int
    """Size of the output; 0 without one."""
    built_at: float | None
    """Seconds since the epoch."""
    build_seconds: float | None
    """How long the step's commands took."""
    last_used: float | None
    """Seconds since the epoch."""
    folder: str
    """Where the output is, or will be."""


@dataclass(frozen=True)
class EngineDetails(EngineRow):
    """One output with all that is known of it."""

    key: dict[str, Any]
    """What the output depends on; empty if it cannot be read."""
    uses: tuple[str, ...]
    """Folders of the runs that have used it; they may be gone."""
    manifest: Manifest | None
    """What was built; ``None`` without an output."""


def row_of(item: Item) -> EngineRow:
    """Return what is printed of an entry."""
    manifest, about = item.manifest, item.about
    return EngineRow(
        name=item.entry.name,
        step=item.step,
        state=item.state,
        note=item.note,
        model=about.get("model"),
        backend=about.get("backend"),
        version=about.get("version"),
        layout=about.get("layout"),
        bytes=item.size,
        built_at=manifest.built_at if manifest else None,
        build_seconds=manifest.seconds if manifest else None,
        last_used=item.last_used,
        folder=str(item.entry.output),
    )


def details_of(item: Item) -> EngineDetails:
    """Return everything that is known of an entry."""
    uses = tuple(use.run for use in item.entry.uses())
    return EngineDetails(**vars(row_of(item)), key=item.entry.key() or {}, uses=uses, manifest=item.manifest)


def list_entries(cache: Cache) -> list[Item]:
    """Return every entry, the last used first."""
    items = [inspect(entry) for entry in cache.entries()]
    return sorted(items, key=lambda item: (-(item.last_used or 0.0), item.entry.name))


def inspect(entry: Entry) -> Item:
    """Return one entry's state, judged by names and sizes."""
    record = entry.key() or {}
    state, note = _state(entry)
    manifest = entry.manifest()
    return Item(
        entry=entry,
        state=state,
        note=note,
        about=dict(record.get("about") or {}),
        step=str(record.get("document", {}).get("step", "")),
        manifest=manifest,
        last_used=_last_used(entry, manifest),
    )


def _state(entry: Entry) -> tuple[EntryState, str]:
    try:
        faults = entry.faults()
    except PermissionError:
        return UNREADABLE, "to all but its owner"
    if faults == []:
        return WHOLE, ""
    builder = find_holder(entry.folder)
    if builder is not None and not builder.is_abandoned():
        is_silent = builder.silent_s > seconds(DEAD_VARIABLE)
        silence = f", silent for {builder.silent_s:.0f} s" if is_silent else ""
        return BUILDING, f"by {builder}{silence}"
    return (HALF_BUILT, "its builder is gone") if faults is None else (BROKEN, "; ".join(faults))


def _last_used(entry: Entry, manifest: Manifest | None) -> float | None:
    try:
        return entry.used.stat().st_mtime
    except OSError:
        return manifest.built_at if manifest else None


def verify(entry: Entry, progress: Callable[[str], None] = lambda name: None) -> list[str]:
    """Read a finished output completely and compare it with its manifest; returns what is wrong.

    Faults are noted in the entry, so that no run takes a damaged output for the engine it needs. An entry
    without an output has no faults. ``progress`` is called with each file's name before it is read.
    """
    try:
        found = entry.faults()
    except PermissionError:
        return ["it cannot be read by this user"]
    faults = [sentence] if (sentence := entry.key_fault()) else []
    manifest = entry.manifest()
    if manifest is None:
        return faults + (found or [])
    return faults + wrong_files(entry, manifest, progress)
