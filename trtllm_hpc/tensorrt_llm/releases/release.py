"""Releases of TensorRT-LLM: their facts, and the release in a container image."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache

from packaging.version import InvalidVersion, Version

from trtllm_hpc.config.diagnostics import nearest
from trtllm_hpc.errors import ExitCode, TrtllmHpcError
from trtllm_hpc.tensorrt_llm.releases.data_files import parsed, read_data, with_tuples
from trtllm_hpc.tensorrt_llm.releases.programs import Program, load_program

_TAG = re.compile(r"tritonserver[^/]*?(?<!\d)(\d\d\.\d\d)-trtllm")
"""Finds the tag in ``nvidia/tritonserver:24.12-trtllm-python-py3`` and
``tritonserver_24.12-trtllm-python-py3.sqsh``."""
_VERSION = re.compile(r"tensorrt-llm[/#+_-]release[:+_-]v?(\d+(?:\.\d+)*(?:(?:rc|\.post)\d+)*)")
"""Finds the version in ``nvcr.io/nvidia/tensorrt-llm/release:1.2.0`` and
``nvidia+tensorrt-llm+release+1.2.0rc6.sqsh``."""
_KEY = "engine.tensorrt_llm_version"


class UnknownRelease(TrtllmHpcError, exit_code=ExitCode.CONFIG):
    """Neither the image nor the stated version leads to a known release; ``choices`` are the known ones."""

    def __init__(
        self, message: str, *, hint: str, choices: Sequence[str] = (), is_newer: bool = False
    ) -> None:
        super().__init__(message, hint=hint)
        self.choices = tuple(choices)
        self.is_newer = is_newer


@dataclass(frozen=True)
class ContainerPaths:
    """Paths of upstream's files in the release's container; ``None``: not known."""

    examples: str | None = None
    """Folder of TensorRT-LLM's ``examples``."""
    all_models: str | None = None
    """Folder of the templates of model repositories."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """A release of TensorRT-LLM and the Triton containers that have it."""

    PRINTED = ("builds_with",)

    version: str
    """Version as ``packaging`` writes it: ``0.16.0``, ``0.17.0.post1``."""
    tags: tuple[str, ...]
    """Tags of Triton's containers, e.g. ``24.12``; empty if none is known."""
    tensorrt: str | None = None
    python: str | None
    cuda: str | None
    paths: ContainerPaths
    backends: tuple[str, ...]
    """Values of ``engine.backend`` that the container supports: ``tensorrtllm``, ``python``, ``pytorch``."""
    source: str
    """Source of the facts."""
    note: str | None = None

    def at_least(self, version: str) -> bool:
        """Return whether this release is ``version`` or a later one."""
        return parsed(self.version) >= parsed(version)

    def program(self, name: str, family: str = "llama") -> Program | None:
        """Return the program ``name`` for models of ``family``; ``None``: this release lacks the program."""
        return load_program(self.version, name, family)

    @property
    def builds_with(self) -> tuple[str, ...]:
        """Programs that make an engine from a checkpoint, in their order; empty: the release builds none."""
        names = ("build.py", "convert_checkpoint.py", "trtllm-build")
        present = [name for name in names if self.program(name) is not None]
        # 0.7 also has trtllm-build, but only for a few other models, and no conversion for it.
        return ("build.py",) if "build.py" in present else tuple(present)

    def build_default(self, option: str) -> int | None:
        """Return the build's default for an option; ``None`` if it is not a number, or not known."""
        for name in ("trtllm-build", "build.py"):
            program = self.program(name)
            if program is not None and option in program.options:
                default = program.options[option].default
                return default if type(default) is int else None
        return None


@cache
def releases() -> tuple[Release, ...]:
    """Return all known releases, oldest first."""
    names, known = {field.name for field in fields(ContainerPaths)}, []
    for entry in read_data("releases")["release"]:
        paths = ContainerPaths(**{key: entry[key] for key in entry if key in names})
        facts = {key: entry[key] for key in entry if key not in names}
        known.append(Release(paths=paths, **with_tuples(facts)))
    return tuple(sorted(known, key=lambda release: parsed(release.version)))


def tag_of_image(image: str) -> str | None:
    """Return Triton's tag (``24.12``) in the name of an image with TensorRT-LLM; ``None`` for other names."""
    match = _TAG.search(image.rstrip("/").rsplit("/", 1)[-1])
    return match[1] if match is not None else None


def version_of_image(image: str) -> str | None:
    """Return the version in the name of one of TensorRT-LLM's own images; ``None`` for other names."""
    match = _VERSION.search(image)
    return match[1] if match is not None else None


def nearest_release(version: str | None) -> Release:
    """Return the release with the LLM API nearest to an unknown one: the newest before it, else the first.

    If ``version`` is ``None`` or not a version, the newest release is returned.
    """
    able = [release for release in releases() if "pytorch" in release.backends]
    wanted = _version(version or "")
    before = able if wanted is None else [release for release in able if parsed(release.version) <= wanted]
    return before[-1] if before else able[0]


def image_of_tag(tag: str) -> str | None:
    """Return the image of TensorRT-LLM with Triton's ``tag``; ``None`` unless it has the form ``24.12``."""
    return f"tritonserver:{tag}-trtllm-python-py3" if re.fullmatch(r"\d\d\.\d\d", tag) else None


def release_of_tag(tag: str) -> Release | None:
    """Return the release in Triton's container ``tag``."""
    return next((release for release in releases() if tag in release.tags), None)


@cache
def release_of_version(version: str) -> Release | None:
    """Return the release with a version, in any spelling (``0.16``, ``v0.16.0``)."""
    wanted = _version(version)
    return next((release for release in releases() if parsed(release.version) == wanted), None)


def find_release(image: str | None, stated: str | None) -> Release:
    """Return the release in a container image, or of the stated version.

    ``image`` is a name or the path of a file; ``stated`` is the value of ``engine.tensorrt_llm_version``.
    Raises UnknownRelease if neither leads to a release, the version is unknown, or the two disagree.
    """
    tag = tag_of_image(image) if image is not None else None
    version = version_of_image(image) if image is not None else None
    in_image = release_of_tag(tag) if tag is not None else release_of_version(version or "")
    if stated is None:
        if in_image is None:
            raise _unknown_version(version) if version is not None else _unknown_image(image, tag)
        return in_image
    named = release_of_version(stated)
    if named is None:
        raise _unknown_version(stated)
    if in_image is not None and in_image is not named:
        images = " or ".join(f"{tag}-trtllm-python-py3" for tag in named.tags)
        raise UnknownRelease(
            f"the image {image} has TensorRT-LLM {in_image.version}, but {_KEY} says {stated}",
            hint=f"type --set {_KEY}=null to go by the image, or name an image of {images or named.version}",
        )
    return named


def _unknown_image(image: str | None, tag: str | None) -> UnknownRelease:
    message = f"the name of the image {image} does not show its release of TensorRT-LLM"
    if image is None:
        message = "without a container image the version of TensorRT-LLM must be stated"
    elif tag is not None:
        message = f"the release of TensorRT-LLM in the container {tag} ({image}) is not known here"
    return UnknownRelease(
        message,
        hint=f"set {_KEY}; in the container: python3 -c "
        "'from importlib.metadata import version; print(version(\"tensorrt_llm\"))'",
        choices=[release.version for release in releases()],
        is_newer=tag is not None
        and all(Version(tag) > Version(known) for release in releases() for known in release.tags),
    )


def _unknown_version(stated: str) -> UnknownRelease:
    versions = [release.version for release in releases()]
    near = nearest(stated, versions, cutoff=0.5)
    in_container = release_of_tag(stated)
    if in_container is not None:
        hint = f"{stated} is a tag of Triton's containers; its TensorRT-LLM is {in_container.version}"
    else:
        hint = f"the nearest is {near}" if near else "trtllm-hpc versions lists them"
    message = f"TensorRT-LLM {stated} is not a release known here"
    version = _version(stated) if in_container is None else None
    is_newer = version is not None and version > parsed(versions[-1])
    return UnknownRelease(message, hint=hint, choices=versions, is_newer=is_newer)


def _version(text: str) -> Version | None:
    with suppress(InvalidVersion):
        return Version(text)
    return None
