"""Releases that nobody here has read, as an image itself described them: ``versions learn``.

``doctor --on-nodes --bundle`` reads the options of ``trtllm-serve`` and the keys of the LLM API in the image.
Kept in the user's own folder, a file for each version, they are facts like those in ``data/``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from trtllm_hpc.errors import ConfigError, Diagnostic
from trtllm_hpc.paths import read_json, user_data, write_json


def learned_folder() -> Path:
    """Return the folder of the files, which need not exist. Raises RuntimeError without a home."""
    return user_data() / "releases"


@cache
def learned() -> Mapping[str, Mapping[str, Any]]:
    """Return the facts of every learned release by version; a damaged file is left out."""
    found: dict[str, Mapping[str, Any]] = {}
    try:
        files = sorted(learned_folder().glob("*.json"))
    except (OSError, RuntimeError):
        return found
    for file in files:
        try:
            record: Mapping[str, Any] = read_json(file) or {}
            found[str(Version(record["version"]))] = record
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


@dataclass(frozen=True)
class LearnedRelease:
    """A release whose facts an image has given."""

    version: str
    file: str
    """What has the facts from now on; without it the release is unknown again."""


def learn(bundle: Path) -> LearnedRelease:
    """Keep the facts of a bundle in the user's folder.

    Raises:
        ConfigError: the file is not a bundle with the facts of an image.
    """
    try:
        image = (read_json(bundle) or {})["facts"]["image"]
        version = str(Version(image["packages"]["tensorrt_llm"].partition("+")[0]))
        options, keys = image["serve_options"], image["llm_api"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, InvalidVersion):
        hint = f"trtllm-hpc doctor JOB --on-nodes --bundle {bundle.name}, with the image of that release"
        message = "is not a bundle of doctor --on-nodes that describes an image with TensorRT-LLM"
        raise ConfigError([Diagnostic("not-a-bundle", message, str(bundle), hint=hint)]) from None
    tag = re.match(r"\d\d\.\d\d$", image.get("image_environment", {}).get("NVIDIA_TRITON_SERVER_VERSION", ""))
    folder = learned_folder()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{version}.json"
    tags = [] if tag is None else [tag[0]]
    write_json(file, {"version": version, "tags": tags, "serve_options": options, "llm_api": keys})
    learned.cache_clear()
    return LearnedRelease(version, str(file))


def release_entry(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a learned release as an entry of ``releases.toml``."""
    about = {"tags": record["tags"], "python": None, "cuda": None, "backends": ["pytorch"]}
    return {"version": record["version"], **about, "source": "read in an image by doctor --on-nodes"}
