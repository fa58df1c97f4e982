"""The key of a step's output: a hash of all that makes it what it is."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from trtllm_hpc.runtime.engine_cache.model_files import Revision, revision_of
from trtllm_hpc.runtime.engine_cache.recipe import MODEL, BuildStep, Place, Recipe, Word

FORMAT = 1
"""Counted up when the same document comes to mean something else."""

SHOWN = 16
"""Hexadecimal digits of the key that name a folder."""


class NoCapability(Exception):
    """The GPU's compute capability is part of a key, and is not known here."""


@dataclass(frozen=True)
class StepKey:
    """One step's key, and the document that it is the hash of."""

    step: str
    document: dict[str, Any]
    digest: str = field(default="")

    @property
    def name(self) -> str:
        """Name of the entry's folder."""
        return f"{self.step}-{self.digest[:SHOWN]}"


def canonical(document: Any) -> bytes:
    """The one text of a JSON document: what is equal has the same bytes."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest_of(document: Any) -> str:
    """Hash of a document."""
    return hashlib.sha256(canonical(document)).hexdigest()


def step_keys(
    recipe: Recipe,
    *,
    compute_capability: str | None,
    edited_script: str | None = None,
    look: Callable[[Path], Revision] = revision_of,
) -> tuple[StepKey, ...]:
    """The keys of all steps, in their order.

    Args:
        compute_capability: of the GPUs that the engine is for, e.g. ``"9.0"``.
        edited_script: hash of ``build.sh`` if a person has changed it.

    Raises:
        NoModel: the model cannot be read here.
        NoCapability: see there.
    """
    made: dict[str, StepKey] = {}
    known: dict[str, Revision] = {}

    def revision(path: str) -> Revision:
        if path not in known:
            known[path] = look(Path(path))
        return known[path]

    for step in recipe.steps:
        document = _document(step, recipe, made, revision)
        if step.on_gpu:
            if compute_capability is None:
                raise NoCapability
            document["compute_capability"] = compute_capability
        if edited_script is not None:
            document["edited_script"] = edited_script
        made[step.name] = StepKey(step.name, document, digest_of(document))
    return tuple(made.values())


def _document(
    step: BuildStep, recipe: Recipe, made: Mapping[str, StepKey], revision: Callable[[str], Revision]
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "format": FORMAT,
        "step": step.name,
        "commands": [_command(command, step) for command in step.commands],
        "directory": step.directory,
        "identity": dict(step.identity),
        "inputs": {name: made[name].digest for name in step.reads if name in made},
    }
    if MODEL in step.reads and recipe.model_path is not None:
        document["model"] = revision(recipe.model_path)
    folders = [name for name in step.reads if name.startswith("/")]
    if folders:
        document["folders"] = [revision(name) for name in folders]
    return document


def _command(words: tuple[Word, ...], step: BuildStep) -> list[Any]:
    """The words, without any name of a folder that says nothing of the content.

    A program counts by its name and not by where it lies: the same Python in
    another environment's folder builds the same engine. A place is an object,
    so that no text can pass for one.
    """
    folders = [name for name in step.reads if name.startswith("/")]
    return [_word(word, folders, is_program=number == 0) for number, word in enumerate(words)]


def _word(word: Word, folders: list[str], *, is_program: bool) -> Any:
    if isinstance(word, Place):
        return {"place": word.name, "suffix": word.suffix}
    if is_program:
        # python, python3 and python3.12 may be names of one program.
        return re.sub(r"^python[\d.]*$", "python", PurePosixPath(word).name)
    if word in folders:
        return {"folder": folders.index(word)}
    return word
