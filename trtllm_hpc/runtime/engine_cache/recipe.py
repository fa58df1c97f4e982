"""What to build, as data: ``build.json`` in the run folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trtllm_hpc.paths import read_json, write_json

FORMAT = 1
"""Number of this file's form; a runtime refuses another's."""

OUTPUT, MODEL, RUN = "output", "model", "run"
"""Names of places that are no step: the step's own folder, the model's, the run's."""


class BadRecipe(Exception):
    """``build.json`` is not there, or is not one that this version reads."""


@dataclass(frozen=True)
class Place:
    """A word of a command that is only known when the step runs."""

    name: str
    """``output``: the step's own folder; ``model``; ``run``; or an earlier step: that one's output."""
    suffix: str = ""
    """What follows it, e.g. ``/encoder``."""


Word = str | Place


@dataclass(frozen=True)
class BuildStep:
    """One step from a model to its engine: a conversion, a quantization, the build itself.

    Its output is found again by a key that depends on everything here, and on
    the content of what it reads, but on no folder's name.
    """

    name: str
    """``convert``, ``quantize``, ``build``, ``lora``; ``engine`` for the reference backend."""
    commands: tuple[tuple[Word, ...], ...]
    directory: str | None = None
    """Working directory, inside the container; ``None`` is the run folder."""
    inputs: tuple[str, ...] = ()
    """``model``, earlier steps, and further folders or files by their absolute paths."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """What else makes its output what it is: versions, layout. JSON values."""
    on_gpu: bool = False
    """Whether the output depends on the GPU's compute capability."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of all that it reads, be they listed or only used as a place."""
        places = (word.name for command in self.commands for word in command if isinstance(word, Place))
        named = (*self.inputs, *(name for name in places if name not in (OUTPUT, RUN)))
        return tuple(dict.fromkeys(named))


@dataclass(frozen=True)
class Recipe:
    """All steps from a model to its engine."""

    engines_folder: str
    steps: tuple[BuildStep, ...]
    """In order; the output of the last is the engine."""
    model_path: str | None = None
    """``None`` for a model made on the spot: the command's words say all of it."""
    tensorrt_llm: str | None = None
    """The version that was planned for; ``None`` if the backend is another."""
    compute_capability: str | None = None
    """Of the GPUs, as the profile says; ``None``: to be read in the job."""
    script_sha256: str | None = None
    """Of ``build.sh`` as it was rendered: an edited one makes another engine."""
    wait_seconds: float = 3600.0
    """How long to wait for somebody else's build of the same step."""
    about: Mapping[str, str] = field(default_factory=dict)
    """For people: model, backend, version, layout. No part of any key."""

    @property
    def ends(self) -> tuple[str, ...]:
        """The steps whose output is wanted for itself: the engine, and what no other step reads."""
        read = {name for step in self.steps for name in step.reads}
        return tuple(step.name for step in self.steps if step.name not in read or step is self.steps[-1])

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        write_json(path, self.as_json())

    def as_json(self) -> dict[str, Any]:
        """Plain JSON types; a place is an object, any other word a string."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def read(cls, path: Path) -> Recipe:
        """Read what :meth:`write` has written.

        Raises:
            BadRecipe: see there.
        """
        try:
            record = read_json(path)
        except (ValueError, OSError) as error:
            raise BadRecipe(f"{path} cannot be read: {error}") from None
        if record is None:
            raise BadRecipe(f"{path} is not there: the run folder is not whole")
        return cls.from_json(record, str(path))

    @classmethod
    def from_json(cls, record: Any, name: str = "the recipe") -> Recipe:
        """Raises BadRecipe if ``record`` is not what :meth:`as_json` gives."""
        try:
            values = dict(record)
            if values.pop("format") != FORMAT:
                raise BadRecipe(f"{name} was written by another version of trtllm-hpc")
            return cls(**{**values, "steps": tuple(_step(step) for step in values["steps"])})
        except (KeyError, TypeError, ValueError) as error:
            raise BadRecipe(f"{name} is damaged ({type(error).__name__}: {error})") from None


def _step(record: dict[str, Any]) -> BuildStep:
    commands = tuple(tuple(_word(word) for word in command) for command in record["commands"])
    return BuildStep(**{**record, "commands": commands, "inputs": tuple(record["inputs"])})


def _word(word: str | dict[str, str]) -> Word:
    return word if isinstance(word, str) else Place(**word)
