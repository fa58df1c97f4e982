"""Is the engine in the cache? Asked before anything is submitted."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtllm_hpc.runtime.engine_cache.cache import Cache, Entry, Manifest
from trtllm_hpc.runtime.engine_cache.differences import Chain, differences, distance
from trtllm_hpc.runtime.engine_cache.keys import NoCapability, StepKey, step_keys
from trtllm_hpc.runtime.engine_cache.model_files import NoModel
from trtllm_hpc.runtime.engine_cache.recipe import Recipe


@dataclass(frozen=True)
class Hit:
    """The engine is there."""

    entry: Entry
    manifest: Manifest
    others: Mapping[str, Entry]
    """What else the run is to have, by step: adapters for clients, for instance."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All that the run will use."""
        return (self.entry, *self.others.values())


@dataclass(frozen=True)
class Miss:
    """The engine is not there, or is not whole."""

    key: StepKey
    nearest: Entry | None
    """The finished output of the same step that differs least; ``None`` if there is none."""
    differences: tuple[str, ...]
    """How the engine that is asked for differs from ``nearest``, a line for each part."""
    found: tuple[str, ...]
    """Steps whose output is there: only the rest is built."""
    broken: tuple[str, ...]
    """What is wrong with the engine's own output, if it is there all the same."""


@dataclass(frozen=True)
class Unknown:
    """It cannot be told here; the job will look."""

    reason: str


def lookup(recipe: Recipe) -> Hit | Miss | Unknown:
    """Look for the engine of a recipe, without changing anything."""
    try:
        keys = step_keys(recipe, compute_capability=recipe.compute_capability)
        return _look(recipe, keys)
    except NoModel as error:
        return Unknown(str(error))
    except NoCapability:
        return Unknown("the cluster profile names no compute_capability")
    except OSError as error:
        return Unknown(f"{os.fsdecode(error.filename or recipe.engines_folder)}: {error.strerror}")


def _look(recipe: Recipe, keys: tuple[StepKey, ...]) -> Hit | Miss:
    cache = Cache(Path(recipe.engines_folder))
    entries = {key.step: cache.entry(key) for key in keys}
    found = tuple(step for step, entry in entries.items() if entry.is_whole())
    entry = entries[keys[-1].step]
    manifest = Manifest.read(entry.output)
    if manifest is not None and set(recipe.ends) <= set(found):
        others = {step: entries[step] for step in recipe.ends if step != keys[-1].step}
        return Hit(entry, manifest, others)
    complaints = entry.missing()
    nearest, parts = _nearest(cache, {key.step: key.document for key in keys}, keys[-1].step)
    return Miss(keys[-1], nearest, parts, found, tuple(complaints or ()))


def _nearest(cache: Cache, mine: Chain, step: str) -> tuple[Entry | None, tuple[str, ...]]:
    chains: dict[Entry, Mapping[str, Mapping[str, object]]] = {}
    for entry in cache.entries():
        record = entry.key()
        if record is not None and record["document"].get("step") == step and entry.is_whole():
            chains[entry] = record.get("chain") or {step: record["document"]}
    if not chains:
        return None, ()
    nearest = min(chains, key=lambda entry: distance(mine, chains[entry]))
    return nearest, tuple(differences(mine, chains[nearest]))
