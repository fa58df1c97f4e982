"""What is in the cache, in which state, and whether every byte is what was built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trtllm_hpc.runtime.engine_cache.cache import Cache, Entry, Manifest
from trtllm_hpc.runtime.engine_cache.verify import wrong_files

EntryState = Literal["whole", "broken", "building", "half-built", "unreadable"]


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

    @property
    def entry(self) -> Entry:
        """The entry in the cache."""
        return Entry(Path(self.folder).parent)


def list_entries(cache: Cache) -> list[EngineRow]:
    """Return every entry, the last used first."""
    rows = [inspect(entry) for entry in cache.entries()]
    return sorted(rows, key=lambda row: (-(row.last_used or 0.0), row.name))


def inspect(entry: Entry) -> EngineRow:
    """Return one entry's state, judged by names and sizes."""
    record = entry.key() or {}
    about = record.get("about") or {}
    state, note = _state(entry)
    manifest = entry.manifest()
    return EngineRow(
        name=entry.name,
        step=str(record.get("document", {}).get("step", "")),
        state=state,
        note=note,
        model=about.get("model"),
        backend=about.get("backend"),
        version=about.get("version"),
        layout=about.get("layout"),
        bytes=manifest.size if manifest else 0,
        built_at=manifest.built_at if manifest else None,
        build_seconds=manifest.seconds if manifest else None,
        last_used=_last_used(entry, manifest),
        folder=str(entry.output),
    )


def _state(entry: Entry) -> tuple[EntryState, str]:
    try:
        faults = entry.faults()
    except PermissionError:
        return "unreadable", "to all but its owner"
    if faults == []:
        return "whole", ""
    if (builder := entry.holder()) is not None:
        return "building", f"by {builder}"
    return ("half-built", "its builder is gone") if faults is None else ("broken", "; ".join(faults))


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
