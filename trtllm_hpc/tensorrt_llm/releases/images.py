"""Which release an image carries."""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import cache

from packaging.version import InvalidVersion, Version

from trtllm_hpc.tensorrt_llm.releases.load import releases
from trtllm_hpc.tensorrt_llm.releases.model import Release, UnknownRelease

_TAG = re.compile(r"tritonserver[^/]*?(?<!\d)(\d\d\.\d\d)-trtllm")
"""In ``nvidia/tritonserver:24.12-trtllm-python-py3`` and ``tritonserver_24.12-trtllm-python-py3.sqsh``."""
_KEY = "engine.tensorrt_llm_version"


def tag_of_image(image: str) -> str | None:
    """Triton's tag (``24.12``) in the name of an image with TensorRT-LLM; ``None`` for other names."""
    found = _TAG.search(image.rstrip("/").rsplit("/", 1)[-1])
    return found[1] if found is not None else None


def image_of_tag(tag: str) -> str | None:
    """The image with TensorRT-LLM of Triton's ``tag``; ``None`` where it is not of the form ``24.12``."""
    return f"tritonserver:{tag}-trtllm-python-py3" if re.fullmatch(r"\d\d\.\d\d", tag) else None


def release_of_tag(tag: str) -> Release | None:
    """The release in Triton's container ``tag``."""
    return next((release for release in releases() if tag in release.tags), None)


@cache
def release_of_version(version: str) -> Release | None:
    """The release of that version, however it is written (``0.16``, ``v0.16.0``)."""
    try:
        wanted = Version(version)
    except InvalidVersion:
        return None
    return next((release for release in releases() if Version(release.version) == wanted), None)


def find_release(image: str | None, stated: str | None) -> Release:
    """The release of a container's image, of the version that was stated, or of both.

    Args:
        image: name of the image or path of its file.
        stated: what ``engine.tensorrt_llm_version`` says.

    Raises:
        UnknownRelease: neither tells it, the version is unknown, or the two disagree.
    """
    tag = tag_of_image(image) if image is not None else None
    carried = release_of_tag(tag) if tag is not None else None
    if stated is None:
        return carried if carried is not None else _ask(image, tag)
    named = release_of_version(stated)
    if named is None:
        raise _unknown_version(stated)
    if carried is not None and carried is not named:
        raise UnknownRelease(
            f"the image {image} carries TensorRT-LLM {carried.version}, but {_KEY} says {stated}",
            hint=f"type --set {_KEY}=null to go by the image, or name an image of {_images(named)}",
        )
    return named


def _ask(image: str | None, tag: str | None) -> Release:
    versions = tuple(release.version for release in releases())
    if image is None:
        message = "without a container image the version of TensorRT-LLM must be stated"
    elif tag is not None:
        message = f"which TensorRT-LLM is in the container {tag} ({image}) is not known here"
    else:
        message = f"the name of the image {image} does not tell its TensorRT-LLM"
    raise UnknownRelease(
        message,
        hint=f"set {_KEY}; in the container: python3 -c "
        "'from importlib.metadata import version; print(version(\"tensorrt_llm\"))'",
        choices=versions,
    )


def _unknown_version(stated: str) -> UnknownRelease:
    versions = [release.version for release in releases()]
    near = get_close_matches(stated, versions, n=1, cutoff=0.5)
    carried = release_of_tag(stated)
    if carried is not None:
        hint = f"{stated} is a tag of Triton's containers; its TensorRT-LLM is {carried.version}"
    else:
        hint = f"the nearest is {near[0]}" if near else "trtllm-hpc versions lists them"
    return UnknownRelease(f"TensorRT-LLM {stated} is not a release known here", hint=hint, choices=versions)


def _images(release: Release) -> str:
    if not release.tags:
        return release.version
    return " or ".join(f"{tag}-trtllm-python-py3" for tag in release.tags)
