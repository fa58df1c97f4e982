"""The engine cache on the login node: look an engine up, list the entries, and verify them.

:mod:`trtllm_hpc.runtime.engine_cache` has the parts that jobs need as well: keys, entries and the build.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trtllm_hpc.paths import write_text
from trtllm_hpc.runtime.engine_cache.build_recipe import BuildRecipe
from trtllm_hpc.runtime.engine_cache.cache import Cache, CacheEntry, files_in, size_fault
from trtllm_hpc.runtime.engine_cache.keys import CapabilityUnknown, ModelUnreadable, digest_of, step_keys
from trtllm_hpc.runtime.engine_cache.shared_files import sha256_of

EntryState = Literal["whole", "broken", "building", "half-built", "unreadable"]

_OTHER_MODEL = "model: another, or other files"
_LABELS = {
    "compute_capability": "GPU's compute capability",
    "directory": "working directory",
    "edited_script": "scripts/build.sh as edited by hand",
    "tensorrt_llm": "TensorRT-LLM",
    "tensorrt": "TensorRT",
}


@dataclass(frozen=True)
class CachedEngine:
    """The result of the search for a run's engine in the cache."""

    state: Literal["found", "missed", "unknown"]
    """``found``: nothing needs to be built. ``missed``: the job builds the engine first. ``unknown``: this
    machine cannot find out, and the job searches the cache itself."""
    name: str | None = None
    """Name of the engine, now or later, in ``engines list``."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """If found: the folder of each output that the run uses, by step; the engine is the last."""
    nearest: str | None = None
    """If missed: the engine in the cache that differs least."""
    differences: tuple[str, ...] = ()
    """Differences of ``nearest``, a line for each part."""
    steps_found: tuple[str, ...] = ()
    """Steps of the build whose output is in the cache."""
    broken: tuple[str, ...] = ()
    """Faults of the cached engine of that name, because of which it is built again."""
    reason: str | None = None
    """Why the state is unknown."""

    @property
    def entries(self) -> tuple[CacheEntry, ...]:
        """The cache entries of ``outputs``."""
        return tuple(CacheEntry(Path(folder).parent) for folder in self.outputs.values())


def lookup(recipe: BuildRecipe) -> CachedEngine:
    """Search the cache, without changing it, for a recipe's engine or else for the nearest one."""
    cache = Cache(Path(recipe.engines_folder))
    try:
        keys = step_keys(recipe, compute_capability=recipe.compute_capability)
        entries = {key.step: cache.entry(key) for key in keys}
        found = tuple(step for step, entry in entries.items() if entry.is_complete())
        engine = keys[-1]
        if set(recipe.results) <= set(found):
            outputs = {step: str(entries[step].output) for step in recipe.results}
            return CachedEngine("found", engine.name, outputs)
        faults = entries[engine.step].faults() or ()
        wanted = dict(_parts({key.step: key.document for key in keys}))
        others: list[tuple[str | None, tuple[str, ...]]] = []
        for entry in cache.entries():
            record = entry.key()
            if record and record["document"].get("step") == engine.step and entry.is_complete():
                others.append((entry.name, tuple(_differences(wanted, record))))
    except ModelUnreadable as error:
        return CachedEngine("unknown", reason=error.message.removesuffix("."))
    except CapabilityUnknown:
        return CachedEngine("unknown", reason="the cluster profile names no compute_capability")
    except OSError as error:
        place = os.fsdecode(error.filename or recipe.engines_folder)
        return CachedEngine("unknown", reason=f"{place}: {error.strerror}")
    # An engine of another model counts as further away than any difference in options.
    others.sort(key=lambda other: (other[1][:1] == (_OTHER_MODEL,), len(other[1])))
    nearest, parts = others[0] if others else (None, ())
    return CachedEngine("missed", engine.name, {}, nearest, parts, found, tuple(faults))


def _differences(wanted: Mapping[str, str], record: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each part in which a cached engine's ``key.json`` differs from ``wanted``."""
    document = record["document"]
    before = dict(_parts(record.get("chain") or {document.get("step", ""): document}))
    if before.get("model") != wanted.get("model"):
        yield _OTHER_MODEL
    for part in dict.fromkeys([*wanted, *before]):
        old, new = before.get(part, "not given"), wanted.get(part, "not given")
        if old != new and part != "model":
            yield f"{part}: {old} -> {new}"


def _parts(chain: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield label and value of everything that a key depends on; several steps may repeat a part."""
    for step, document in chain.items():
        if document.get("model"):
            yield "model", _summary(document["model"])
        for number, command in enumerate(document.get("commands", []), start=1):
            where = step if len(document["commands"]) == 1 else f"{step}, command {number}"
            option, values = "command", list[str]()
            for word in (*map(_word, command), "--"):
                if word.startswith("--"):
                    yield f"{option} ({where})", " ".join(values) or "on"
                    option, values = word, []
                else:
                    values.append(word)
        for name, value in document.get("identity", {}).items():
            words = [f"{key} {item}" for key, item in value.items()] if isinstance(value, dict) else [value]
            yield _LABELS.get(name, name), " ".join(map(str, words))
        for name in ("directory", "compute_capability", "edited_script"):
            if document.get(name) is not None:
                yield _LABELS[name], str(document[name])
        for number, revision in enumerate(document.get("folders", []), start=1):
            yield f"files of input {number} ({step})", _summary(revision)


def _summary(revision: Any) -> str:
    return f"{len(revision)} files, {digest_of(revision)[:8]}"


def _word(record: Any) -> str:
    if isinstance(record, str):
        return record
    if "place" in record:
        return f"<{record['place']}>{record['suffix']}"
    return f"<input {record['folder'] + 1}>"


# Entries of the cache -----------------------------------------------------------------


@dataclass(frozen=True)
class EngineRow:
    """An output in the cache: an engine, or the output of another build step."""

    name: str
    """Step and first digits of the key."""
    step: str
    """The build step that made the output."""
    state: EntryState
    """``half-built``: the builder is gone. ``unreadable``: this user may not read the entry."""
    note: str
    """The builder, or the faults."""
    model: str | None
    backend: str | None
    version: str | None
    """Version of the program that built the output, e.g. of TensorRT-LLM."""
    layout: str | None
    """Parallel layout of the ranks, e.g. ``tp 2``."""
    bytes: int
    """Size of the output in bytes; 0 without an output."""
    built_at: float | None
    """Time of the build, in seconds since the epoch."""
    build_seconds: float | None
    """Duration of the step's commands in seconds."""
    last_used: float | None
    """Time of the last use, in seconds since the epoch."""
    folder: str
    """Folder of the output, now or later."""

    @property
    def entry(self) -> CacheEntry:
        """The entry in the cache."""
        return CacheEntry(Path(self.folder).parent)


def list_entries(cache: Cache) -> list[EngineRow]:
    """Return every entry, checked by names and sizes only, the last used first."""
    rows = map(_row, cache.entries())
    return sorted(rows, key=lambda row: (-(row.last_used or 0.0), row.name))


def _row(entry: CacheEntry) -> EngineRow:
    record, manifest = entry.key() or {}, entry.manifest()
    about = record.get("about") or {}
    state, note = _state(entry)
    built_at = last_used = manifest.built_at if manifest else None
    with suppress(OSError):
        last_used = entry.used.stat().st_mtime
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
        built_at=built_at,
        build_seconds=manifest.seconds if manifest else None,
        last_used=last_used,
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


def verify(entry: CacheEntry) -> list[str]:
    """Read a finished output completely and compare it with its manifest; return the faults.

    The faults are recorded in the entry, so that no run uses a damaged output. An entry without an output has
    no faults.
    """
    try:
        known = entry.faults()
    except PermissionError:
        return ["it cannot be read by this user"]
    faults = [sentence] if (sentence := entry.key_fault()) else []
    manifest = entry.manifest()
    if manifest is None:
        return faults + (known or [])
    wrong = []
    for name, (size, digest) in manifest.files.items():
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
    with suppress(OSError):  # the cache may be read-only
        if wrong:
            write_text(entry.damage, "".join(f"{line}\n" for line in wrong), mode=0o644)
        else:
            entry.damage.unlink(missing_ok=True)
    return faults + wrong
