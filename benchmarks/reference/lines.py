"""The lines of the table: the contenders, and what each is compared with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.reference.children import Task

BATCHING = "continuous-batching"
CONTENDERS = ("triton", "engine", BATCHING, "generate")
"""What may be chosen; a GPU has two ways of each of the last two."""

TRITON = "triton"
ENGINE = "engine"
FEATURES = ", all features"


@dataclass(frozen=True)
class Line:
    """One line of the table."""

    name: str
    task: Task
    features: bool = False
    is_library: bool = False
    """transformers itself, and able to serve: a bar for what goes through Triton.

    A compiled batch of fixed size and one length is no bar but shown beside:
    nobody could join it.
    """

    @property
    def is_bar(self) -> bool:
        """Whether it runs in one process, with at most the features that the requests through Triton use."""
        return self.is_library or self.task.name == ENGINE


def lines(chosen: Iterable[str], device: str, *, features: bool) -> list[Line]:
    """The lines for these contenders, in the order of the table."""
    found: list[Line] = []
    for name in (name for name in CONTENDERS if name in set(chosen)):
        if name == BATCHING:
            found.append(
                Line("continuous batching", Task("continuous batching", "contend_batching"), False, True)
            )
            if device == "cuda":
                graphs = "continuous batching, CUDA graphs"
                found.append(Line(graphs, Task(graphs, "contend_batching", "graphs"), False, True))
        elif name == "generate":
            found.append(Line("generate", Task("generate", "contend_generate"), False, True))
            if device == "cuda":
                static = "generate, static compiled"
                found.append(Line(static, Task(static, "contend_generate", "static")))
        else:
            task = Task(name, f"contend_{name}")
            found.append(Line(name, task))
            if features:
                found.append(Line(name + FEATURES, task, True))
    return found
