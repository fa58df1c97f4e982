"""What this project knows of a release of TensorRT-LLM, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from trtllm_hpc.errors import ExitCode, TrtllmHpcError
from trtllm_hpc.tensorrt_llm.releases.defaults import parsed

if TYPE_CHECKING:
    from trtllm_hpc.tensorrt_llm.releases.placeholders import Placeholder

Form = Literal["flag", "value", "switch", "list"]
"""How an option is written: ``--x``; ``--x WORD``; ``--x enable|disable``; ``--x WORD [WORD ...]``."""
Value = str | int | float | bool
"""A default as upstream's parser has it; ``False`` is a flag that is off."""


class UnknownRelease(TrtllmHpcError):
    """The release cannot be told from the image and what was stated.

    Args:
        choices: the versions, or tags, that are known.
    """

    exit_code = ExitCode.CONFIG

    def __init__(self, message: str, *, hint: str, choices: Sequence[str] = ()) -> None:
        super().__init__(message, hint=hint)
        self.choices = tuple(choices)


@dataclass(frozen=True)
class Option:
    """One option of a command, as one release takes it."""

    name: str
    form: Form
    choices: tuple[str, ...]
    """The words it takes; empty: any."""
    default: Value | None
    """``None``: the release has none, or works it out from the model."""
    changed: str | None
    """A sentence where the default differs in other releases, which nothing says when it is left out."""
    ignored: str | None
    """A sentence where the release takes the option and does nothing with it."""
    source: str
    """Where the release's list was read, and how surely; see ``Command.status``."""
    aliases: tuple[str, ...] = ()
    """Other spellings of the same option, such as ``-i``."""
    required: bool = False
    note: str | None = None
    bare: bool = False
    """Whether the value may be left out; upstream then has one of its own, which is not ``default``."""


@dataclass(frozen=True)
class OptionHistory:
    """Which releases have an option."""

    name: str
    first: str
    """The oldest release here that has it."""
    last: str | None
    """The newest that has it; ``None``: the newest release of the command still does."""
    replaced_by: str | None
    """What to write instead in releases after ``last``."""
    note: str | None
    gone: str | None = None
    """The first release without it; ``None`` as for ``last``."""


@dataclass(frozen=True)
class Command:
    """One of upstream's tools, as one release has it."""

    name: str
    family: str | None
    """The model family that the list is of; ``None`` where there is one list for all."""
    release: str
    options: Mapping[str, Option]
    """By name with dashes, ``--max_batch_size``; other spellings through ``find``."""
    status: str
    """``verified``: read at this very release; else which neighbour the list was taken from, and why."""
    source: str
    file: str | None = None
    """The program: below ``examples`` for what converts and builds, else below the checkout or ``/app``."""
    subcommands: Mapping[str, Command] = field(default_factory=dict)
    """By name. What stands before the sub-command is this command's, what follows is the sub-command's."""
    histories: Mapping[str, OptionHistory] = field(default_factory=dict, repr=False)

    def find(self, word: str) -> Option | None:
        """The option of that spelling, be it its name or one of its aliases."""
        found = self.options.get(word)
        if found is not None:
            return found
        return next((option for option in self.options.values() if word in option.aliases), None)

    def history(self, option: str) -> OptionHistory | None:
        """Which releases have ``option``; also for an option that this release lacks."""
        return self.histories.get(option)


@dataclass(frozen=True)
class ContainerPaths:
    """Where upstream's files lie inside the release's container; ``None``: not known."""

    examples: str | None
    """Folder of TensorRT-LLM's ``examples``."""
    all_models: str | None
    """Folder of the templates of model repositories."""
    scripts: str | None
    """Folder of ``launch_triton_server.py``."""
    client: str | None
    """Folder of the two gRPC clients."""
    tools: str | None
    """Folder of ``fill_template.py``, and below it of the benchmarks."""
    tritonserver: str
    """The server's program."""


@dataclass(frozen=True)
class Release:
    """One release of TensorRT-LLM and the Triton containers that carry it."""

    version: str
    """As ``packaging`` writes it: ``0.16.0``, ``0.17.0.post1``."""
    tags: tuple[str, ...]
    """Triton's tags, ``24.12``; empty if none is known."""
    tensorrt: str | None
    python: str | None
    cuda: str | None
    paths: ContainerPaths
    backends: tuple[str, ...]
    """What ``engine.backend`` may be in its container: ``tensorrtllm``, ``python``, ``llmapi``."""
    source: str
    note: str | None = None

    def at_least(self, version: str) -> bool:
        """Whether this release is ``version`` or a later one."""
        return parsed(self.version) >= parsed(version)

    def command(self, name: str, family: str = "llama") -> Command | None:
        """The tool ``name`` for models of ``family``; ``None``: this release does not have it."""
        from trtllm_hpc.tensorrt_llm.releases.load import load_command

        return load_command(self.version, name, family)

    def examples_folder(self, family: str) -> str | None:
        """The family's folder of examples in the container; ``None`` where either is not known."""
        from trtllm_hpc.tensorrt_llm.releases.load import family_folder

        folder = family_folder(self.version, family)
        if folder is None or self.paths.examples is None:
            return None
        return f"{self.paths.examples}/{folder}"

    def placeholders(self, group: str, model: str) -> Mapping[str, Placeholder]:
        """Placeholders of the template of ``model`` in ``all_models/<group>``, by name."""
        from trtllm_hpc.tensorrt_llm.releases.placeholders import placeholders_of

        return placeholders_of(self.version, group, model)
