"""The data files: facts about releases as TOML in ``data/``, in the format of docs/reference/releases.md."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

from packaging.version import Version

from trtllm_hpc.paths import kept_in_cache

DATA = files("trtllm_hpc.tensorrt_llm.releases") / "data"
UNSET = "unset"
"""Value in the data for "no default", because TOML has no null."""
UNRELEASED = "unreleased"
"""Used in the data in place of a version for upstream's changes after the newest known release."""
NEWER = "9999"
"""Version used for an image that is newer than all known releases."""


@cache
def read_data(name: str) -> Mapping[str, Any]:
    """Return the data file ``name`` (without its ending, with ``/`` for a folder); read when first needed.

    A copy of each version of the file is cached as JSON, which is read twenty times as fast.
    """
    data = DATA.joinpath(f"{name}.toml").read_bytes()
    cached = kept_in_cache(f"releases/{sha256(data).hexdigest()[:32]}.json", lambda: json.dumps(_parse(data)))
    try:
        table: dict[str, Any] = json.loads(cached)
    except ValueError:  # the cached copy is damaged
        table = _parse(data)
    return table


def _parse(data: bytes) -> dict[str, Any]:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    table: dict[str, Any] = toml.loads(data.decode())
    return table


@cache
def listed_versions() -> tuple[str, ...]:
    """Return the versions in ``releases.toml``, in the file's order."""
    return tuple(entry["version"] for entry in read_data("releases")["release"])


@cache
def parsed(version: str) -> Version:
    """Return a version that can be compared; ``unreleased`` comes after every release."""
    return Version("9998" if version == UNRELEASED else version)


def beginning(version: str) -> str:
    """Return a clause about the first version with something, to follow "it"."""
    return f"came after {listed_versions()[-1]}" if version == UNRELEASED else f"came with {version}"


def with_tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry with tuples in place of lists, as fields of a frozen class."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}


def value_at(value: Any, version: str) -> Any:
    """Return the value that applies to a release.

    ``value`` may differ between releases, as in ``{ "0.7.1" = 1, "0.11.0" = 256 }``; the value of the newest
    named release up to ``version`` applies.
    """
    if not isinstance(value, Mapping):
        return None if value == UNSET else value
    reached = [key for key in value if parsed(key) <= parsed(version)]
    return value_at(value[max(reached, key=parsed)], version) if reached else None
