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
"""Written in the data where a release has no default, since TOML has no null."""
UNRELEASED = "unreleased"
"""Written in the data in place of a version for what upstream has after the newest release known here."""
NEWER = "9999"
"""Stands for the version of an image that is newer than all releases known here."""


@cache
def read_data(name: str) -> Mapping[str, Any]:
    """The data file ``name`` (without its ending, with ``/`` for a folder), read when it is first needed.

    JSON, which is read twenty times as fast, is kept of each version of the file.
    """
    data = DATA.joinpath(f"{name}.toml").read_bytes()
    kept = kept_in_cache(f"releases/{sha256(data).hexdigest()[:32]}.json", lambda: json.dumps(_parse(data)))
    try:
        table: dict[str, Any] = json.loads(kept)
    except ValueError:  # damaged
        table = _parse(data)
    return table


def _parse(data: bytes) -> dict[str, Any]:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    table: dict[str, Any] = toml.loads(data.decode())
    return table


@cache
def listed_versions() -> tuple[str, ...]:
    """The versions in ``releases.toml``, in its order."""
    return tuple(entry["version"] for entry in read_data("releases")["release"])


@cache
def parsed(version: str) -> Version:
    """The version as something to compare; ``unreleased`` comes after every release."""
    return Version("9998" if version == UNRELEASED else version)


def beginning(version: str) -> str:
    """Return since when upstream has something, to follow "it"."""
    return f"came after {listed_versions()[-1]}" if version == UNRELEASED else f"came with {version}"


def with_tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry as the fields of a frozen class: a list becomes a tuple."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}


def value_at(value: Any, version: str) -> Any:
    """Return the value that holds for a release.

    ``value`` may differ between releases, ``{ "0.7.1" = 1, "0.11.0" = 256 }``: then that of the newest
    release named which is not newer than ``version``.
    """
    if not isinstance(value, Mapping):
        return None if value == UNSET else value
    begun = [key for key in value if parsed(key) <= parsed(version)]
    return value_at(value[max(begun, key=parsed)], version) if begun else None
