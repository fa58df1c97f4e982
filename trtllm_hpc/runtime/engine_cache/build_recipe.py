"""The steps of a build as data: ``build.json`` in the run folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trtllm_hpc.errors import BuildFailed
from trtllm_hpc.paths import read_json, write_json

FORMAT = 1
"""Version of this file's format; the runtime refuses any other."""

OUTPUT, MODEL, RUN = "output", "model", "run"
"""Placeholders for folders other than an earlier step's output: the step's own, the model's, the run's."""


@dataclass(frozen=True)
class FolderArgument:
    """A folder in a command, whose path is known only when the step runs."""

    name: str
    """``output`` (the step's own folder), ``model``, ``run``, or the earlier step whose output it is."""
    suffix: str = ""
    """Text that follows the folder's path, e.g. ``/encoder``."""


Argument = str | FolderArgument


@dataclass(frozen=True)
class BuildStep:
    """One step from a model to its engine: a conversion, a quantization, the build itself.

    The key of the step's output depends on all these fields and on the content of the folders that the step
    reads, but not on the names of folders.
    """

    name: str
    """``convert``, ``quantize``, ``build``, ``lora``; ``engine`` for the reference backend."""
    commands: tuple[tuple[Argument, ...], ...]
    """Command lines, run one after the other."""
    directory: str | None = None
    """Working directory, inside the container; ``None``: the run folder."""
    inputs: tuple[str, ...] = ()
    """``model``, earlier steps, and further folders or files by their absolute paths."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """Further facts that determine the output, such as versions and the layout. JSON values."""
    on_gpu: bool = False
    """Whether the output depends on the GPU's compute capability."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Everything that the step reads: its inputs and the placeholders in its commands."""
        words = (word for command in self.commands for word in command)
        names = (word.name for word in words if isinstance(word, FolderArgument))
        return tuple(dict.fromkeys((*self.inputs, *(name for name in names if name not in (OUTPUT, RUN)))))


@dataclass(frozen=True)
class BuildRecipe:
    """All steps from a model to its engine."""

    engines_folder: str
    """The cache's folder."""
    steps: tuple[BuildStep, ...]
    """The steps in order; the output of the last step is the engine."""
    model_path: str | None = None
    """The model's folder; ``None`` for a synthetic model, which the command's arguments determine."""
    tensorrt_llm: str | None = None
    """The release of TensorRT-LLM that was planned for; ``None`` for another backend."""
    compute_capability: str | None = None
    """The GPU's compute capability in the cluster profile; ``None``: the job reads it."""
    script_sha256: str | None = None
    """Hash of the rendered ``build.sh``: an edited script makes another engine."""
    wait_seconds: float = 3600.0
    """Seconds to wait for another run's build of the same step."""
    about: Mapping[str, str] = field(default_factory=dict)
    """Model, backend, version and layout for tables; not part of any key."""

    @property
    def results(self) -> tuple[str, ...]:
        """The steps whose output the run itself needs: the engine, and every output that no step reads."""
        read = {name for step in self.steps for name in step.reads}
        return tuple(step.name for step in self.steps if step.name not in read or step is self.steps[-1])

    def write(self, path: Path) -> None:
        """Write the recipe as JSON: a placeholder becomes an object, any other argument a string."""
        write_json(path, {"format": FORMAT, **asdict(self)})

    @classmethod
    def read(cls, path: Path) -> BuildRecipe:
        """Read a recipe that :meth:`write` wrote.

        Raises BuildFailed if the file is missing, damaged or of another version.
        """
        try:
            record = read_json(path)
        except (ValueError, OSError) as error:
            raise BuildFailed(f"{path} cannot be read: {error}.") from None
        if record is None:
            raise BuildFailed(f"{path} is missing: the run folder is incomplete.")
        try:
            values = dict(record)
            if values.pop("format") != FORMAT:
                raise BuildFailed(f"{path} was written by another version of trtllm-hpc.")
            for step in values["steps"]:
                step["inputs"] = tuple(step["inputs"])
                step["commands"] = tuple(
                    tuple(word if isinstance(word, str) else FolderArgument(**word) for word in command)
                    for command in step["commands"]
                )
            return cls(**{**values, "steps": tuple(BuildStep(**step) for step in values["steps"])})
        except (KeyError, TypeError, ValueError) as error:
            raise BuildFailed(f"{path} is damaged ({type(error).__name__}: {error}).") from None
