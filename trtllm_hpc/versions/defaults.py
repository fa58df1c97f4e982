"""Values that differ from release to release, written in the data as ``{ "0.7.1" = 1, "0.11.0" = 256 }``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.version import Version

UNSET = "unset"
"""Written in the data where a release has no default, since TOML has no null."""


def value_at(value: Any, version: Version) -> Any:
    """The value that holds for ``version``: that of the newest release named which is not newer."""
    if not isinstance(value, Mapping):
        return None if value == UNSET else value
    begun = [key for key in value if Version(key) <= version]
    if not begun:
        return None
    found = value[max(begun, key=Version)]
    return None if found == UNSET else found


def changed_sentence(value: Any, version: Version) -> str | None:
    """A sentence on the defaults of other releases; ``None`` where there has been one only."""
    if not isinstance(value, Mapping) or len(value) < 2:
        return None
    keys = sorted(value, key=Version)
    steps = [f"{_words(value[keys[0]])} before {keys[1]}"]
    steps += [f"{_words(value[key])} from {key}" for key in keys[1:]]
    return f"Left out, it is {_words(value_at(value, version) or UNSET)} here; {', '.join(steps)}."


def _words(value: Any) -> str:
    if value == UNSET:
        return "worked out or unset"
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
