"""What a rule about several fields has to say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from trtllm_hpc.config.findings import Path


@dataclass(frozen=True)
class Problem:
    """A finding without its place."""

    file: Literal["job", "cluster"]
    code: str
    path: Path
    message: str
    hint: str
    value: Any = None


Problems = Iterator[Problem]


def in_job(code: str, field: str, message: str, hint: str, value: Any = None) -> Problem:
    """A problem with the job file's field of that dotted name; a number is a place in a list."""
    parts = (int(part) if part.isdigit() else part for part in field.split("."))
    return Problem("job", code, tuple(parts), message, hint, value)


def in_cluster(code: str, field: str, message: str, hint: str, value: Any = None) -> Problem:
    """A problem with the profile's field of that dotted name."""
    return Problem("cluster", code, tuple(field.split(".")), message, hint, value)
