"""A key of the job file with its value, and the ways to say it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trtllm_hpc.tensorrt_llm.releases import Command, Option

Role = Literal["build_py", "prepare", "convert", "quantize", "build"]
"""What a program does on the way from a model to its engine; ``engine.options`` has the same names."""


SILENT: Any = object()
"""A value that an option says by being left out."""


class Unsayable(Exception):
    """A value that no option can carry, whatever the release's spelling.

    Args:
        message: why, in words that follow the key.
        hint: what to do.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(frozen=True)
class Context:
    """What a value may depend on besides itself."""

    dtype: str | None
    """The type that the model is computed in; ``None`` where only its ``config.json`` tells."""
    max_input_len: int | None
    """Longest prompt that the job file asks for."""


Translate = Callable[[Any, Option, Command, Context], Any]
"""The value as the option takes it; ``None``: this option cannot say it."""


@dataclass(frozen=True)
class Say:
    """One spelling: an option of one program."""

    role: Role
    option: str
    means: Mapping[Any, Any] | Translate | None = None
    """The option's value for the key's; a mapping need not hold every value. ``None``: the same."""

    def value(self, value: Any, option: Option, command: Command, context: Context) -> Any:
        """The value as this option takes it; ``None``: it cannot say it."""
        if self.means is None:
            return value
        if callable(self.means):
            return self.means(value, option, command, context)
        return self.means.get(value)


@dataclass(frozen=True)
class Wish:
    """A key that the job file sets."""

    key: str
    """Dotted, for findings."""
    value: Any
    ways: tuple[Say, ...]
    """In the order of preference."""
    everywhere: bool = False
    """Whether every program that can be told is told; else the first."""
    needed: bool = True
    """Whether it is an error that no program can be told."""
