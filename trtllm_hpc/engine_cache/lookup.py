"""Is an engine in the cache, and if not, what differs from the nearest one that is?"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trtllm_hpc.runtime.engine_cache.build_recipe import BuildRecipe
from trtllm_hpc.runtime.engine_cache.cache import Cache, CacheEntry
from trtllm_hpc.runtime.engine_cache.keys import (
    CapabilityUnknown,
    ModelUnreadable,
    StepKey,
    digest_of,
    step_keys,
)

Chain = Mapping[str, Mapping[str, Any]]
"""The key documents of all steps of a build, by step."""


@dataclass(frozen=True)
class CachedEngine:
    """What the cache has for a run."""

    state: Literal["found", "missed", "unknown"]
    """``found``: there is nothing to build. ``missed``: the job builds the engine first. ``unknown``: this
    machine cannot tell, and the job looks in the cache itself."""
    name: str | None = None
    """The name that it has, or will have, in ``engines list``."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """If it was found: the folder of each output that the run uses, by step; the engine is the last."""
    nearest: str | None = None
    """If it was missed: the engine in the cache that differs least."""
    differences: tuple[str, ...] = ()
    """How ``nearest`` differs, a line for each part."""
    steps_found: tuple[str, ...] = ()
    """Steps of the build whose output is in the cache."""
    broken: tuple[str, ...] = ()
    """What is wrong with the engine of that name, which is therefore built again."""
    reason: str | None = None
    """Why the state is unknown."""

    @property
    def entries(self) -> tuple[CacheEntry, ...]:
        """The entries of ``outputs``."""
        return tuple(CacheEntry(Path(folder).parent) for folder in self.outputs.values())


def lookup(recipe: BuildRecipe) -> CachedEngine:
    """Look for a recipe's engine, without changing anything."""
    try:
        keys = step_keys(recipe, compute_capability=recipe.compute_capability)
        return _look(recipe, keys)
    except ModelUnreadable as error:
        return CachedEngine("unknown", reason=error.message.removesuffix("."))
    except CapabilityUnknown:
        return CachedEngine("unknown", reason="the cluster profile names no compute_capability")
    except OSError as error:
        place = os.fsdecode(error.filename or recipe.engines_folder)
        return CachedEngine("unknown", reason=f"{place}: {error.strerror}")


def _look(recipe: BuildRecipe, keys: tuple[StepKey, ...]) -> CachedEngine:
    cache = Cache(Path(recipe.engines_folder))
    entries = {key.step: cache.entry(key) for key in keys}
    found = tuple(step for step, entry in entries.items() if entry.is_complete())
    engine = keys[-1]
    if set(recipe.results) <= set(found):
        outputs = {step: str(entries[step].output) for step in recipe.results}
        return CachedEngine("found", engine.name, outputs)
    faults = entries[engine.step].faults() or ()
    nearest, parts = _nearest(cache, {key.step: key.document for key in keys}, engine.step)
    return CachedEngine("missed", engine.name, {}, nearest, parts, found, tuple(faults))


def _nearest(cache: Cache, wanted: Chain, step: str) -> tuple[str | None, tuple[str, ...]]:
    """Return the entry that differs least, and its differences; another model is further than any option."""
    found = [
        (entry.name, tuple(_differences(wanted, chain_of(record))))
        for entry in cache.entries()
        if (record := entry.key()) and record["document"].get("step") == step and entry.is_complete()
    ]
    return min(found, key=lambda pair: (pair[1][:1] == (_OTHER_MODEL,), len(pair[1])), default=(None, ()))


_OTHER_MODEL = "model: another, or other files"
_LABELS = {
    "compute_capability": "GPU's compute capability",
    "directory": "working directory",
    "edited_script": "scripts/build.sh as edited by hand",
    "tensorrt_llm": "TensorRT-LLM",
    "tensorrt": "TensorRT",
}


def chain_of(record: Mapping[str, Any]) -> Chain:
    """Return the key documents in an entry's ``key.json``."""
    document = record["document"]
    chain: Chain = record.get("chain") or {document.get("step", ""): document}
    return chain


def parts_of(chain: Chain) -> dict[str, str]:
    """Return everything that a key depends on, by label. Steps may repeat a part."""
    return dict(part for step, document in chain.items() for part in _parts(step, document))


def _differences(wanted: Chain, other: Chain) -> Iterator[str]:
    """Yield one line for each part in which ``wanted`` differs from ``other``; the model first."""
    before, after = parts_of(other), parts_of(wanted)
    if before.pop("model", None) != after.pop("model", None):
        yield _OTHER_MODEL
    for part in {**after, **before}:
        old, new = before.get(part, "not given"), after.get(part, "not given")
        if old != new:
            yield f"{part}: {old} -> {new}"


def _parts(step: str, document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
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
        text = " ".join(f"{key} {item}" for key, item in value.items()) if isinstance(value, dict) else value
        yield _LABELS.get(name, name), str(text)
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
