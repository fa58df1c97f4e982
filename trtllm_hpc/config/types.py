"""Field types of job files and cluster profiles."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WrapValidator, model_validator
from pydantic_core import core_schema


class Section(BaseModel):
    """A section of a job file or a profile: no unknown keys, no silent conversion, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _filled(cls, plain: Any) -> Any:
        if not isinstance(plain, dict):
            return plain
        # A missing section becomes {}: validated with its parent, it needs no validator of its own.
        factories = ((name, field.default_factory) for name, field in cls.model_fields.items())
        inner = (
            name for name, factory in factories if isinstance(factory, type) and issubclass(factory, Section)
        )
        return cls.with_defaults({**{name: {} for name in inner}, **plain})

    @classmethod
    def with_defaults(cls, plain: dict[str, Any]) -> dict[str, Any]:
        """Add the defaults that depend on other values."""
        return plain


def _no_control_characters(text: str) -> str:
    bad = sorted({character for character in text if ord(character) < 32 or ord(character) == 127})
    if bad:
        raise ValueError(f"must be one line without control characters; found {', '.join(map(repr, bad))}")
    return text


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("contains a NUL byte, which no command line can carry")
    return text


def _variable_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        raise ValueError(f"{text!r} cannot name an environment variable (letters, digits and _ only)")
    return text


OneLine = Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_no_control_characters)]
"""One non-empty line for a script. Quotes, ``$( )``, spaces and all letters are allowed."""

AnyText = Annotated[str, Field(max_length=100_000), AfterValidator(_no_nul)]
"""Any text without NUL, such as a prompt."""

AbsolutePath = Annotated[OneLine, Field(pattern=r"^/")]
"""A path on the compute nodes; absolute because jobs start in another folder."""

VariableName = Annotated[str, AfterValidator(_variable_name)]

# \z and not $, because $ also matches before a trailing newline in some engines.
JobName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\z")]
"""Name of run folders and Slurm jobs: a letter or digit, then letters, digits, ``.``, ``_``, ``-``."""

HubName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*\z")]
"""Name of a hub model, ``org/name``."""

_SPAN, _SLURM = r"(\d+(\.\d+)?[smhdw])+", r"\d+(:\d+){1,2}|\d+-\d+(:\d+){0,2}"
TIME = f"^({_SPAN}|{_SLURM})$"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def seconds_in(text: str, unit_s: float) -> float:
    """Return the seconds in a time: `90m`, `1h30m` or, in Slurm's notation, `30:00`, `4:00:00`, `1-12`.

    A bare number is in units of ``unit_s`` seconds; 0 refuses it. Raises ValueError if it is not a time.
    """
    if re.fullmatch(_SPAN, text):
        return sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([\d.]+)(\w)", text))
    if unit_s and re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text) * unit_s
    if re.fullmatch(_SLURM, text):
        days, _, clock = text.rpartition("-")
        parts = [*map(int, clock.split(":")), 0, 0][: 3 if days else clock.count(":") + 1]
        return int(days or 0) * 86400 + sum(a * b for a, b in zip(parts[::-1], (1, 60, 3600), strict=False))
    raise ValueError(f"{text!r} is not a time; write it like 90s, 15m, 12h, 30d or 4:00:00")


def one_of(words: str) -> WrapValidator:
    """Return a validator with one error per union, "must be ..., not ...", instead of one per member."""

    def judged(value: Any, judge: Callable[[Any], Any]) -> Any:
        try:
            return judge(value)
        except ValueError:
            raise ValueError(f"must be {words}, not {value!r}") from None

    return WrapValidator(judged)


@dataclass(frozen=True)
class Time:
    """Annotation of a number of seconds or minutes that can also be text, such as `1m` or `4:00:00`."""

    unit_s: int
    """Length of the number's unit, in seconds."""

    def number(self, text: str) -> float:
        """Convert text into the unit. Raises ValueError if it is not a time."""
        return seconds_in(text, self.unit_s) / self.unit_s

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        def number(value: Any) -> Any:
            # A number in quotes stays text, which the type refuses.
            if not isinstance(value, str) or re.fullmatch(r"\s*[-+]?[\d.]+\s*", value):
                return value
            amount = self.number(value)
            if source is int and not amount.is_integer():
                unit = "minutes" if self.unit_s == 60 else "seconds"
                raise ValueError(f"{value} is {amount:g} {unit}, and must be a whole number of {unit}")
            return source(amount)

        return core_schema.no_info_before_validator_function(number, handler(source))

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: Any) -> dict[str, Any]:
        number: dict[str, Any] = handler(schema)
        return {**number, "type": [number["type"], "string"], "pattern": TIME}


TokenCount = Annotated[int, Field(ge=1, le=10_000_000)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
MemoryGib = Annotated[Count | Literal["all"], one_of("a whole number of GiB, or all")]
"""Memory of a node; ``all`` becomes Slurm's ``--mem=0``."""
Minutes = Annotated[int, Field(ge=1, le=525_600), Time(60)]
Seconds = Annotated[int, Field(ge=1, le=31_536_000), Time(1)]

PATTERNS: dict[str, tuple[str, str | None]] = {
    r"^/": ("must be an absolute path (it begins with '/')", "write the path as the compute nodes see it"),
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\z": (
        "must begin with a letter or digit, followed by at most 63 letters, digits, '.', '_' or '-'",
        None,
    ),
    r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*\z": (
        "must be the name of a hub model, in the form org/name",
        "write it as on the hub's page, e.g. Qwen/Qwen3-8B; for a folder, set model.path",
    ),
    r"^-": ("must begin with '-', as options do", "write one option in each item, e.g. --mail-type=FAIL"),
    r"^[^,]*$": ("must not contain a comma, which separates mounts", "write one mount in each item"),
    r"^[a-z0-9_]+$": (
        "must be the name of an MPI plugin",
        "take one that 'srun --mpi=list' prints, usually pmix",
    ),
    r"^[a-z][a-z0-9_]*\z": ("must be lower-case letters, digits and '_'", "write gemm for --gemm_plugin"),
    r"^\d+\.\d+$": ("must be a compute capability such as 9.0", "quote it: '9.0'; nvidia-smi prints it"),
}
"""The message for each pattern in the models, with its hint or ``None``."""
