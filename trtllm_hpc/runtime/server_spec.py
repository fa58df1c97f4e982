"""How the server of a run is started: written with the plan, read by the supervisor of each rank."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from trtllm_hpc.errors import StartFailed
from trtllm_hpc.runtime.records import JsonRecord


@dataclass(frozen=True)
class ServerSpec(JsonRecord):
    """The run folder's ``server.json``; each phase of a disaggregated run has its own."""

    driver: Literal["triton", "openai"]
    """The code in ``runtime/servers/`` that starts the server and asks whether it is ready."""
    leader: list[str]
    """Program and arguments of rank 0. Values that are known only on the node stand in braces (``{port}``);
    :func:`literal` doubles all other braces."""
    worker: list[str] | None = None
    """The same for every other rank; ``None``: as rank 0."""
    environment: dict[str, str | None] = field(default_factory=dict)
    """Variables of every rank; ``None`` unsets the variable."""
    launcher: str | None = None
    """Program that starts the server and joins the ranks, e.g. ``trtllm-llmapi-launch``."""
    model: str | None = None
    """Folder of the checkpoint that a server with OpenAI's protocol loads."""
    tokenizer: str | None = None
    """Folder of its tokenizer; ``None``: the model's."""
    health: str = "/health"
    """Path that answers with status 200 as soon as a server with OpenAI's protocol listens."""


def read_spec(file: Path) -> ServerSpec:
    """Return the specification in a file. Raises StartFailed if it is missing or damaged."""
    spec = ServerSpec.read(file)
    if spec is None:
        raise StartFailed(f"{file} cannot be read", hint="render the run again (trtllm-hpc render)")
    return spec


def literal(word: str) -> str:
    """Return a word of a command line in which no brace marks a placeholder."""
    return word.replace("{", "{{").replace("}", "}}")


def expand(words: Iterable[str], values: Mapping[str, object]) -> list[str]:
    """Return the words with their placeholders replaced."""
    return [word.format_map(values) for word in words]


@dataclass(frozen=True)
class RankOptions:
    """The options that ``rank.sh`` passes."""

    rank: int
    world_size: int
    ranks_per_node: int
    prefix: str
    """Prefix of this rank's shared memory and scratch folder, with job id and rank."""
    ready_timeout_seconds: float
    spec: ServerSpec
    step: str = "serve"
    """``serve.1`` for instance 1 of several."""
    hang_seconds: float | None = None
    """How long a rank may be silent, or the server compute nothing for a request; ``None``: for ever."""
    prologue: str | None = None
    """Script that runs the job file's commands, and becomes the program of its arguments."""
    wrapper: Sequence[str] = ()
    """Program and arguments that become the server."""

    def before_server(self) -> list[str]:
        """Return the words before the server's and its launcher's. Raises StartFailed: no such wrapper."""
        if self.prologue is not None:
            return ["bash", self.prologue, *self.wrapper]
        if self.wrapper:
            find_program(self.wrapper[0], "install it in the image, or remove serve.wrapper")
        return list(self.wrapper)

    def server_program(self, name: str, hint: str) -> str:
        """Return the server's path on this node; its name if a prologue may yet install it.

        Raises StartFailed if there is none.
        """
        return find_program(name, hint) if self.prologue is None else name

    def words(self, **values: object) -> list[str]:
        """Return this rank's command line with the driver's values, and those that every driver has."""
        words = self.spec.leader if self.rank == 0 else self.spec.worker or self.spec.leader
        return expand(words, {**values, "prefix": self.prefix, "rank": self.rank})


StartCommand = tuple[list[str], dict[str, str]]
"""How to start the server on this node: its words, and variables that override the task's own."""


def find_program(name: str, hint: str) -> str:
    """Return the path of a program of this node. Raises StartFailed if there is none."""
    program = shutil.which(name)
    if program is None:
        raise StartFailed(f"there is no program {name!r} on {os.uname().nodename}", hint=hint)
    return program
