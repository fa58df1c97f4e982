"""What is in the cache, in which state, and whether every byte is what was built."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trtllm_hpc.paths import write_text
from trtllm_hpc.runtime.engine_cache.cache import Cache, CacheEntry, Manifest, files_in, size_fault
from trtllm_hpc.runtime.engine_cache.shared_files import sha256_of

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
    def entry(self) -> CacheEntry:
        """The entry in the cache."""
        return CacheEntry(Path(self.folder).parent)


def list_entries(cache: Cache) -> list[EngineRow]:
    """Return every entry, the last used first."""
    rows = [inspect(entry) for entry in cache.entries()]
    return sorted(rows, key=lambda row: (-(row.last_used or 0.0), row.name))


def inspect(entry: CacheEntry) -> EngineRow:
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


def _state(entry: CacheEntry) -> tuple[EntryState, str]:
    try:
        faults = entry.faults()
    except PermissionError:
        return "unreadable", "to all but its owner"
    if faults == []:
        return "whole", ""
    if (builder := entry.holder()) is not None:
        return "building", f"by {builder}"
    return ("half-built", "its builder is gone") if faults is None else ("broken", "; ".join(faults))


def _last_used(entry: CacheEntry, manifest: Manifest | None) -> float | None:
    try:
        return entry.used.stat().st_mtime
    except OSError:
        return manifest.built_at if manifest else None


def verify(entry: CacheEntry, progress: Callable[[str], None] = lambda name: None) -> list[str]:
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
    wrong = []
    for name, (size, digest) in manifest.files.items():
        progress(name)
        file = entry.output / name
        try:
            fault = size_fault(file, name, size)
            if fault is None and sha256_of(file) != digest:
                fault = f"{name} is not what was built: its SHA-256 differs"
        except OSError as error:
            fault = f"{name} cannot be read: {error.strerror}"
        if fault is not None:
            wrong.append(fault)
    present = {str(file.relative_to(entry.output)) for file in files_in(entry.output)}
    wrong += [f"{name} was not built there" for name in sorted(present - manifest.files.keys())]
    with suppress(OSError):  # a read-only cache
        if wrong:
            write_text(entry.damage, "".join(f"{line}\n" for line in wrong), mode=0o644)
        else:
            entry.damage.unlink(missing_ok=True)
    return faults + wrong
