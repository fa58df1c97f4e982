"""The specification of a run's server: written with the plan, read by the supervisor of each rank."""

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
    """``server.json`` in the run folder; each phase of a disaggregated run has its own file."""

    driver: Literal["triton", "openai"]
    """Module in ``runtime/servers/`` that starts the server and checks whether it is ready."""
    leader: list[str]
    """Program and arguments of rank 0. Values that are known only on the node stand in braces (``{port}``);
    :func:`literal` doubles all other braces."""
    worker: list[str] | None = None
    """Program and arguments of every other rank; ``None``: those of rank 0."""
    environment: dict[str, str | None] = field(default_factory=dict)
    """Environment variables of every rank; ``None`` unsets the variable."""
    launcher: str | None = None
    """Program that starts the server and joins the ranks, e.g. ``trtllm-llmapi-launch``."""
    model: str | None = None
    """Folder of the checkpoint that a server with OpenAI's protocol loads."""
    tokenizer: str | None = None
    """Folder of the tokenizer; ``None``: the model's folder."""
    health: str = "/health"
    """Path that returns status 200 as soon as a server with OpenAI's protocol listens."""


def read_spec(file: Path) -> ServerSpec:
    """Return the specification in a file. Raises StartFailed if the file is missing or damaged."""
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
    """Prefix of this rank's shared memory and scratch folder, with job ID and rank."""
    ready_timeout_seconds: float
    """Seconds that the server may take to become ready."""
    spec: ServerSpec
    step: str = "serve"
    """Name of the job step: ``serve``, or ``serve.1`` for instance 1 of several."""
    hang_seconds: float | None = None
    """Seconds that a rank may be silent, or the server may compute nothing for a request; ``None``: no
    limit."""
    prologue: str | None = None
    """Script that runs the commands of ``serve.prologue``, then becomes the program in its arguments."""
    wrapper: Sequence[str] = ()
    """Program and arguments of ``serve.wrapper``, which becomes the server."""

    def before_server(self) -> list[str]:
        """Return the words before launcher and server; raise StartFailed if the wrapper is missing."""
        if self.prologue is not None:
            return ["bash", self.prologue, *self.wrapper]
        if self.wrapper:
            find_program(self.wrapper[0], "install it in the image, or remove serve.wrapper")
        return list(self.wrapper)

    def server_program(self, name: str, hint: str) -> str:
        """Return the server's path on this node, or just its name if a prologue may still install it.

        Raises StartFailed if the program is missing.
        """
        return find_program(name, hint) if self.prologue is None else name

    def words(self, **values: object) -> list[str]:
        """Return this rank's command line, with its placeholders replaced by ``values`` and common values."""
        words = self.spec.leader if self.rank == 0 else self.spec.worker or self.spec.leader
        return expand(words, {**values, "prefix": self.prefix, "rank": self.rank})


StartCommand = tuple[list[str], dict[str, str]]
"""A server's command line on this node, and environment variables that override the task's own."""


def find_program(name: str, hint: str) -> str:
    """Return the path of a program on this node. Raises StartFailed if the program is missing."""
    program = shutil.which(name)
    if program is None:
        raise StartFailed(f"there is no program {name!r} on {os.uname().nodename}", hint=hint)
    return program
