"""Values that differ from release to release, written in the data as ``{ "0.7.1" = 1, "0.11.0" = 256 }``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from packaging.version import Version

UNSET = "unset"
"""Written in the data where a release has no default, since TOML has no null."""


@cache
def parsed(version: str) -> Version:
    """The version as something to compare."""
    return Version(version)


def value_at(value: Any, version: str | Version) -> Any:
    """The value that holds for ``version``: that of the newest release named which is not newer."""
    if not isinstance(value, Mapping):
        return None if value == UNSET else value
    at = version if isinstance(version, Version) else parsed(version)
    begun = [key for key in value if parsed(key) <= at]
    if not begun:
        return None
    found = value[max(begun, key=parsed)]
    return None if found == UNSET else found


def changed_sentence(defaults: Mapping[str, Any], here: str) -> str | None:
    """A sentence on the defaults of other releases; ``None`` where all are the same.

    Args:
        defaults: of every release that has the option, oldest first; ``None``: that release has none.
        here: the release to speak of.
    """
    steps: list[tuple[str, Any]] = []
    for version, value in defaults.items():
        if not steps or steps[-1][1] != value:
            steps.append((version, value))
    if len(steps) < 2:
        return None
    words = [f"{_words(steps[0][1])} before {steps[1][0]}"]
    words += [f"{_words(value)} from {version}" for version, value in steps[1:]]
    return f"Left out, it is {_words(defaults[here])} here: {', '.join(words)}."


def _words(value: Any) -> str:
    return "unset" if value is None else str(value)
