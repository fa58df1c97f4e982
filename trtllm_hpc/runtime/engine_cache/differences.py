"""Why a key was missed: what differs from another key, in words for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Chain = Mapping[str, Mapping[str, Any]]
"""The documents of all steps of a build, by step."""

_NAMES = {
    "compute_capability": "GPU's compute capability",
    "directory": "folder of the commands",
    "edited_script": "scripts/build.sh as edited by hand",
    "tensorrt_llm": "TensorRT-LLM",
    "tensorrt": "TensorRT",
}
_MOST_FILES = 3


def differences(mine: Chain, other: Chain) -> list[str]:
    """One line for each part in which ``mine`` differs from ``other``; the model first, same or not."""
    lines = [_model(mine, other)]
    before, after = dict(_parts(other)), dict(_parts(mine))
    for part in [*after, *(part for part in before if part not in after)]:
        old, new = before.get(part, "not given"), after.get(part, "not given")
        if old != new:
            lines.append(f"{part}: {old} -> {new}")
    return lines


def parts_of(chain: Chain) -> list[tuple[str, str]]:
    """Everything that a key depends on, with its name."""
    model = _revision(chain)
    first = [("model", f"{len(model)} files, {_hash(model)}")] if model else []
    return [*first, *dict(_parts(chain)).items()]


def distance(mine: Chain, other: Chain) -> tuple[bool, int]:
    """How far two keys are apart: another model is further than any number of options."""
    return _model(mine, other) != _SAME_MODEL, len(differences(mine, other))


_SAME_MODEL = "model: the same"


def _model(mine: Chain, other: Chain) -> str:
    new, old = _revision(mine), _revision(other)
    if new == old:
        return _SAME_MODEL
    if not new or not old:
        return "model: another"
    changed = sorted(name for name in {*new, *old} if new.get(name) != old.get(name))
    shown = ", ".join(changed[:_MOST_FILES]) + (", ..." if len(changed) > _MOST_FILES else "")
    return f"model: {len(changed)} of {len(new)} files differ ({shown})"


def _revision(chain: Chain) -> Mapping[str, Any]:
    return next((document["model"] for document in chain.values() if document.get("model")), {})


def _parts(chain: Chain) -> Iterator[tuple[str, str]]:
    """Everything in a build that has a name, but the model; the same part of two steps only once."""
    for step, document in chain.items():
        yield from _options(step, document.get("commands", []))
        for name, value in document.get("identity", {}).items():
            yield _NAMES.get(name, name), _shown(value)
        for name in ("directory", "compute_capability", "edited_script"):
            if document.get(name) is not None:
                label = _NAMES[name] if name != "directory" else f"{_NAMES[name]} ({step})"
                yield label, _shown(document[name])
        for number, revision in enumerate(document.get("folders", []), start=1):
            yield f"files of input {number} ({step})", f"{len(revision)} files, {_hash(revision)}"


def _hash(revision: Any) -> str:
    from trtllm_hpc.runtime.engine_cache.keys import digest_of

    return digest_of(revision)[:8]


def _options(step: str, commands: list[list[Any]]) -> Iterator[tuple[str, str]]:
    """Each option of each command with its values, and the words that belong to none."""
    for number, command in enumerate(commands, start=1):
        where = step if len(commands) == 1 else f"{step}, command {number}"
        name, values = "command", []
        for word in map(_word, command):
            if not word.startswith("--"):
                values.append(word)
                continue
            yield f"{name} ({where})", " ".join(values) or "on"
            name, separator, value = word.partition("=")
            values = [value] if separator else []
        yield f"{name} ({where})", " ".join(values) or "on"


def _word(word: Any) -> str:
    if isinstance(word, str):
        return word
    return f"<{word['place']}>{word['suffix']}" if "place" in word else f"<input {word['folder'] + 1}>"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name} {_shown(item)}" for name, item in value.items())
    return str(value)
