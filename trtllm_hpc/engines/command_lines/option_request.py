"""A key of the job file with its value, and the options of upstream's programs that can carry it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trtllm_hpc.errors import TrtllmHpcError
from trtllm_hpc.tensorrt_llm.releases.commands import Command, Option

Role = Literal["build_py", "prepare", "convert", "quantize", "build"]
"""What a program does in a toolchain; ``engine.options`` has the same names."""

OMIT: Any = object()
"""A value that is expressed by leaving the option out."""


class NotExpressible(TrtllmHpcError):
    """A value that no option can carry in this release; the message follows the name of the key."""


@dataclass(frozen=True)
class Context:
    """What the value of an option may depend on besides the value of the key."""

    dtype: str | None
    """The type that the model is computed in; ``None`` where only its ``config.json`` tells."""
    max_input_len: int | None
    """Longest prompt that the job file asks for."""


Translate = Callable[[Any, Option, Command, Context], Any]
"""Return the value as the option takes it; ``None`` if this option cannot carry it."""


@dataclass(frozen=True)
class OptionMapping:
    """One option of one program, and how the value of the key becomes the option's."""

    role: Role
    option: str
    translate: Mapping[Any, Any] | Translate | None = None
    """The option's value for the key's; a mapping need not hold every value. ``None``: the same value."""

    def value(self, value: Any, option: Option, command: Command, context: Context) -> Any:
        """Return the value as this option takes it; ``None`` if it cannot carry it."""
        if self.translate is None:
            return value
        if callable(self.translate):
            return self.translate(value, option, command, context)
        return self.translate.get(value)


def same(
    option: str, *roles: Role, translate: Mapping[Any, Any] | Translate | None = None
) -> tuple[OptionMapping, ...]:
    """The option of that name in each of these programs."""
    return tuple(OptionMapping(role, option, translate) for role in roles)


@dataclass(frozen=True)
class OptionRequest:
    """A key that the job file sets, to be expressed by an option."""

    key: str
    """Dotted, for diagnostics."""
    value: Any
    mappings: tuple[OptionMapping, ...]
    """In the order of preference."""
    in_every_program: bool = False
    """Whether each program that has an option for it gets it; else the first only."""
    needed: bool = True
    """Whether it is an error that no program has an option for it."""


def argv(option: Option, value: Any) -> tuple[str, ...] | None:
    """Return an option as arguments, none for a flag that is off; ``None`` if it cannot have the value."""
    if value is OMIT:
        return ()
    if value is None:
        return None
    if option.form == "flag":
        if not isinstance(value, bool):
            return None
        if value:
            return (option.name,)
        return () if not option.default else None
    if option.form == "list":
        items = [value] if isinstance(value, str) or not isinstance(value, Sequence) else list(value)
        return (option.name, *map(str, items)) if items and _are_choices(option, items) else None
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool):
        value = "enable" if value else "disable"
        if value not in option.choices:
            return None
    if not isinstance(value, (str, int, float)):
        return None
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return (option.name, text) if _are_choices(option, [text]) else None


def _are_choices(option: Option, items: Sequence[Any]) -> bool:
    """Whether the option takes each item: one of its choices, or anything where it has none."""
    return not option.choices or all(str(item) in option.choices for item in items)
