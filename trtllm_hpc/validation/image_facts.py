"""An image's own options and keys, held against what is known of its release."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from trtllm_hpc.errors import Diagnostic, ok, warn
from trtllm_hpc.tensorrt_llm.llm_api import known_keys, serve_options
from trtllm_hpc.tensorrt_llm.releases.release import Release

_LISTED = 8
_REPORT = "please report it with what --bundle FILE of this command writes"


def compare_image(release: Release | None, image: Mapping[str, Any]) -> Diagnostic | None:
    """Return how ``trtllm-serve`` and the LLM API of an image differ from what is known of its release.

    ``None`` if the image's own could not be read.

    Args:
        release: the plan's; ``None``: newer than all that are known.
        image: facts of ``runtime.node_checks.image``.
    """
    if "serve_options" not in image or "llm_api" not in image:
        return None
    return replace(_compared(release, image), code="image-facts")


def _compared(release: Release | None, image: Mapping[str, Any]) -> Diagnostic:
    if release is None:
        version = image.get("packages", {}).get("tensorrt_llm", "in the image")
        return warn(f"TensorRT-LLM {version} is newer than every release known here", _REPORT)
    differences = list(_differences(release, image))
    if not differences:
        return ok(f"the image has the options and keys that are known of TensorRT-LLM {release.version}")
    known = f"what is known of TensorRT-LLM {release.version}"
    return warn(f"the image differs from {known}: {'; '.join(differences)}", _REPORT)


def _differences(release: Release, image: Mapping[str, Any]) -> Iterator[str]:
    options = serve_options(release)
    known = {*options, *(alias for option in options.values() for alias in option.aliases)}
    found = {
        name for one in image["serve_options"].get("serve", ()) for name in (one["name"], *one["aliases"])
    }
    yield from _sets("trtllm-serve", known, found)
    for section, keys in image["llm_api"].items():
        expected = known_keys(release, section)
        if expected is not None:
            yield from _sets(section or "the LLM API", expected, keys)


def _sets(name: str, known: Collection[str], found: Collection[str]) -> Iterator[str]:
    for verb, names in (("lacks", {*known} - {*found}), ("adds", {*found} - {*known})):
        if names:
            more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
            yield f"{name} {verb} {', '.join(sorted(names)[:_LISTED])}{more}"
