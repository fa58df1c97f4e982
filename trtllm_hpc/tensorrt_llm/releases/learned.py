"""Releases unknown to this package, with the facts read from an image: ``versions learn``.

``doctor --on-nodes --bundle`` reads the options of ``trtllm-serve`` and the keys of the LLM API in the image.
Kept in the user's own folder, a file for each version, they are facts like those in ``data/``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import Version

from trtllm_hpc.errors import ConfigError, Diagnostic
from trtllm_hpc.paths import read_json, user_data, write_json

LEARNED = "read in an image by doctor --on-nodes"
"""The source of these facts, and of a release that only an image has described."""


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
    """Keep the facts of a bundle in the user's folder.

    Raises:
        ConfigError: the file is not a bundle with the facts of an image.
    """
    try:
        image = (read_json(bundle) or {})["facts"]["image"]
        tag = re.match(r"\d\d\.\d\d$", image["versions"].get("Triton", ""))
        tags = [] if tag is None else [tag[0]]
        version = image["packages"]["tensorrt_llm"]
        record = _facts(version, tags, image["serve_options"], image["llm_api"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        hint = f"trtllm-hpc doctor JOB --on-nodes --bundle {bundle.name}, with the image of that release"
        message = "is not a bundle of doctor --on-nodes that describes an image with TensorRT-LLM"
        raise ConfigError([Diagnostic("not-a-bundle", message, str(bundle), hint=hint)]) from None
    folder = learned_folder()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{record['version']}.json"
    write_json(file, record)
    learned.cache_clear()
    return LearnedRelease(record["version"], str(file))


def release_entry(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a learned release as an entry of ``releases.toml``."""
    about = {"tags": record["tags"], "python": None, "cuda": None, "backends": ["pytorch"]}
    return {"version": record["version"], **about, "source": LEARNED}
