"""Is an engine in the cache, and if not, what differs from the nearest one that is?"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_hpc.runtime.engine_cache.cache import Cache, Entry, Manifest
from trtllm_hpc.runtime.engine_cache.keys import (
    CapabilityUnknown,
    ModelUnreadable,
    StepKey,
    digest_of,
    step_keys,
)
from trtllm_hpc.runtime.engine_cache.recipe import Recipe

Chain = Mapping[str, Mapping[str, Any]]
"""The key documents of all steps of a build, by step."""


@dataclass(frozen=True)
class Hit:
    """The engine is there."""

    entry: Entry
    manifest: Manifest
    others: Mapping[str, Entry]
    """Further outputs for the run, by step: adapters for clients, for instance."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries that the run will use."""
        return (self.entry, *self.others.values())


@dataclass(frozen=True)
class Miss:
    """The engine is missing or incomplete."""

    key: StepKey
    nearest: Entry | None
    """The finished output of the same step that differs least; ``None`` if there is none."""
    differences: tuple[str, ...]
    """How the wanted engine differs from ``nearest``, one line for each part."""
    found: tuple[str, ...]
    """Steps whose output is there: only the rest is built."""
    broken: tuple[str, ...]
    """What is wrong with the engine's output, if there is one."""


@dataclass(frozen=True)
class Unknown:
    """This machine cannot tell; the job will look."""

    reason: str


def lookup(recipe: Recipe) -> Hit | Miss | Unknown:
    """Look for a recipe's engine, without changing anything."""
    try:
        keys = step_keys(recipe, compute_capability=recipe.compute_capability)
        return _look(recipe, keys)
    except ModelUnreadable as error:
        return Unknown(error.message.removesuffix("."))
    except CapabilityUnknown:
        return Unknown("the cluster profile names no compute_capability")
    except OSError as error:
        return Unknown(f"{os.fsdecode(error.filename or recipe.engines_folder)}: {error.strerror}")


def _look(recipe: Recipe, keys: tuple[StepKey, ...]) -> Hit | Miss:
    cache = Cache(Path(recipe.engines_folder))
    entries = {key.step: cache.entry(key) for key in keys}
    found = tuple(step for step, entry in entries.items() if entry.is_complete())
    entry = entries[keys[-1].step]
    manifest = entry.manifest()
    if manifest is not None and set(recipe.results) <= set(found):
        others = {step: entries[step] for step in recipe.results if step != keys[-1].step}
        return Hit(entry, manifest, others)
    faults = entry.faults()
    nearest, parts = _nearest(cache, {key.step: key.document for key in keys}, keys[-1].step)
    return Miss(keys[-1], nearest, parts, found, tuple(faults or ()))


def _nearest(cache: Cache, wanted: Chain, step: str) -> tuple[Entry | None, tuple[str, ...]]:
    """Return the entry that differs least, and its differences; another model is further than any option."""
    found: list[tuple[Entry | None, tuple[str, ...]]] = []
    for entry in cache.entries():
        record = entry.key()
        if record is not None and record["document"].get("step") == step and entry.is_complete():
            lines = differences(wanted, record.get("chain") or {step: record["document"]})
            found.append((entry, tuple(lines)))
    return min(found, key=lambda pair: (pair[1][0] != _SAME_MODEL, len(pair[1])), default=(None, ()))


_LABELS = {
    "compute_capability": "GPU's compute capability",
    "directory": "working directory",
    "edited_script": "scripts/build.sh as edited by hand",
    "tensorrt_llm": "TensorRT-LLM",
    "tensorrt": "TensorRT",
}
_MOST_FILES = 3
_SAME_MODEL = "model: the same"


def differences(wanted: Chain, other: Chain) -> list[str]:
    """Return one line for each part in which ``wanted`` differs from ``other``; the model always first."""
    lines = [_model_difference(wanted, other)]
    before, after = dict(_parts(other)), dict(_parts(wanted))
    for part in {**after, **before}:
        old, new = before.get(part, "not given"), after.get(part, "not given")
        if old != new:
            lines.append(f"{part}: {old} -> {new}")
    return lines


def _model_difference(wanted: Chain, other: Chain) -> str:
    new, old = _model(wanted), _model(other)
    if new == old:
        return _SAME_MODEL
    if not new or not old:
        return "model: another"
    changed = sorted(name for name in {*new, *old} if new.get(name) != old.get(name))
    shown = ", ".join(changed[:_MOST_FILES]) + (", ..." if len(changed) > _MOST_FILES else "")
    return f"model: {len(changed)} of {len(new)} files differ ({shown})"


def _model(chain: Chain) -> Mapping[str, Any]:
    return next((document["model"] for document in chain.values() if document.get("model")), {})


def _parts(chain: Chain) -> Iterator[tuple[str, str]]:
    """Yield label and value of each part of a build but the model. Steps may repeat a part."""
    for step, document in chain.items():
        yield from _options(step, document.get("commands", []))
        for name, value in document.get("identity", {}).items():
            yield _LABELS.get(name, name), _text(value)
        for name in ("directory", "compute_capability", "edited_script"):
            if document.get(name) is not None:
                label = _LABELS[name] if name != "directory" else f"{_LABELS[name]} ({step})"
                yield label, _text(document[name])
        for number, revision in enumerate(document.get("folders", []), start=1):
            yield f"files of input {number} ({step})", _summary(revision)


def _summary(revision: Any) -> str:
    return f"{len(revision)} files, {digest_of(revision)[:8]}"


def _options(step: str, commands: list[list[Any]]) -> Iterator[tuple[str, str]]:
    """Yield each option of each command with its values, and the arguments before the first option."""
    for number, command in enumerate(commands, start=1):
        where = step if len(commands) == 1 else f"{step}, command {number}"
        name, values = "command", []
        for argument in map(_argument, command):
            if not argument.startswith("--"):
                values.append(argument)
                continue
            yield f"{name} ({where})", " ".join(values) or "on"
            name, separator, value = argument.partition("=")
            values = [value] if separator else []
        yield f"{name} ({where})", " ".join(values) or "on"


def _argument(record: Any) -> str:
    if isinstance(record, str):
        return record
    return (
        f"<{record['place']}>{record['suffix']}" if "place" in record else f"<input {record['folder'] + 1}>"
    )


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name} {_text(item)}" for name, item in value.items())
    return str(value)
