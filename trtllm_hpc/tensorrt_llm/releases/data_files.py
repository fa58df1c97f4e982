"""The data files: facts about releases as TOML in ``data/``, in the format of docs/reference/releases.md.

``versions learn`` adds a release that is unknown to this package: ``doctor --on-nodes --bundle`` reads the
options of ``trtllm-serve`` and the keys of the LLM API in its image. The user's own folder has these facts, a
file for each version.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from packaging.version import Version

from trtllm_hpc.errors import ConfigError, Diagnostic
from trtllm_hpc.paths import kept_in_cache, read_json, user_data, write_json

DATA = files("trtllm_hpc.tensorrt_llm.releases") / "data"
UNSET = "unset"
"""Written in the data where a release has no default, since TOML has no null."""
UNRELEASED = "unreleased"
"""Written in the data in place of a version for what upstream has after the newest release known here."""
NEWER = "9999"
"""Stands for the version of an image that is newer than all releases known here."""
LEARNED = "read in an image by doctor --on-nodes"
"""The source of learned facts, and of a release that only an image has described."""


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
    if name == "releases":
        known = {entry["version"] for entry in table["release"]}
        about = {"python": None, "cuda": None, "backends": ["pytorch"], "source": LEARNED}
        table["release"] += [
            {"version": version, "tags": facts["tags"], **about}
            for version, facts in learned().items()
            if version not in known
        ]
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


def learned_folder() -> Path:
    """Return the folder of the files, which need not exist. Raises RuntimeError without a home."""
    return user_data() / "releases"


@cache
def learned() -> Mapping[str, Mapping[str, Any]]:
    """Return the facts of every learned release by version; a damaged file is left out."""
    found: dict[str, Mapping[str, Any]] = {}
    with suppress(OSError, RuntimeError):
        for file in sorted(learned_folder().glob("*.json")):
            with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                record = _facts(**(read_json(file) or {}))
                found[record["version"]] = record
    return found


def _facts(
    version: str, tags: list[str], serve_options: Mapping[str, Any], llm_api: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the facts of a release as they are kept. Raises ValueError, KeyError or TypeError."""
    names = [option["name"] for options in serve_options.values() for option in options]
    if not names or "serve" not in serve_options or not all(map(list, llm_api.values())):
        raise ValueError("no options of trtllm-serve, or no keys of the LLM API")
    return {
        "version": str(Version(version.partition("+")[0])),
        "tags": list(tags),
        "serve_options": serve_options,
        "llm_api": llm_api,
    }


@dataclass(frozen=True)
class LearnedRelease:
    """A release whose facts an image has given."""

    version: str
    file: str
    """What has the facts from now on; without it the release is unknown again."""


def learn(bundle: Path) -> LearnedRelease:
    """Keep the facts of a bundle in the user's folder. Raises ConfigError if it has no facts of an image."""
    try:
        image = (read_json(bundle) or {})["facts"]["image"]
        tag = re.match(r"\d\d\.\d\d$", image["versions"].get("Triton", ""))
        tags = [] if tag is None else [tag[0]]
        version = image["packages"]["tensorrt_llm"]
        record = _facts(version, tags, image["serve_options"], image["llm_api"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        hint = f"trtllm-hpc doctor qwen3-8b --on-nodes --bundle {bundle.name}, with the image of that release"
        message = "is not a bundle of doctor --on-nodes that describes an image with TensorRT-LLM"
        raise ConfigError([Diagnostic("not-a-bundle", message, str(bundle), hint=hint)]) from None
    folder = learned_folder()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{record['version']}.json"
    write_json(file, record)
    learned.cache_clear()
    return LearnedRelease(record["version"], str(file))
