"""Upstream's model templates, kept by the image that they came from.

With an image's templates at hand the model repository is made and checked
before submission; without, the job makes it as its first step.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.errors import RenderError
from trtllm_hpc.paths import read_json, user_cache, write_folder_aside, write_json
from trtllm_hpc.runtime.model_repository.writer import CONFIG, find_all_models

_RECORD = "templates.json"
_LARGEST_BYTES = 200_000_000
"""Of all templates together; upstream's are below two megabytes."""


@dataclass(frozen=True)
class KeptTemplates:
    """The templates of one image."""

    folder: Path
    image: str
    origin: str
    """Where they were taken from: a folder in the image, or on this machine."""
    fetched: str
    """Date and time, UTC."""
    files: dict[str, int]
    """Size in bytes of each file, by path."""

    @property
    def all_models(self) -> Path:
        """The templates themselves."""
        return self.folder / "all_models"

    @property
    def models(self) -> list[str]:
        """``<group>/<model>`` of each."""
        return sorted(str(PurePosixPath(path).parent) for path in self.files if path.endswith(f"/{CONFIG}"))

    @property
    def is_whole(self) -> bool:
        """Whether every file is there, of its size."""
        return bool(self.files) and self.files.items() <= _sizes(self.all_models).items()


def cache_folder() -> Path:
    """The folder of all kept templates."""
    return user_cache() / "templates"


def image_key(cluster: ClusterProfile) -> str:
    """Return the name of the templates' folder: readable, and unique for the image and the path inside it.

    An image in a registry is identified by name, an image file by name, size and date.
    """
    container = cluster.container
    image = container.image or f"no container ({cluster.name})"
    identity: list[Any] = [image, container.all_models]
    try:
        status = Path(image).stat() if "/" in image else None
    except OSError:
        status = None  # a registry's name, or a file that only the nodes see
    if status is not None:
        identity += [status.st_size, status.st_mtime_ns]
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", image.rpartition("/")[2]).strip("-.")[:60]
    return f"{slug}-{hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]}"


def find_templates(cluster: ClusterProfile) -> Path | None:
    """Return the templates that this profile's jobs will use, if this machine or the cache has them."""
    container = cluster.container
    if container.runtime == "none" and container.all_models is not None:
        here = find_all_models(Path(container.all_models))
        if here is not None:
            return here
    kept = _read(cache_folder() / image_key(cluster))
    return kept.all_models if kept is not None and kept.is_whole else None


def keep_folder(cluster: ClusterProfile, source: Path) -> KeptTemplates:
    """Keep the templates of a folder: ``all_models`` itself, or a checkout of upstream's that has it.

    Raises RenderError if there are none, or they cannot be kept.
    """
    all_models = find_all_models(source)
    if all_models is None:
        raise RenderError(
            f"{source} holds no model templates (no <group>/<model>/{CONFIG}).",
            hint="name the folder all_models of a checkout of tensorrtllm_backend, or of TensorRT-LLM's "
            "triton_backend",
        )

    def copy(target: Path) -> None:
        shutil.copytree(all_models, target, ignore=shutil.ignore_patterns("__pycache__", "*.engine"))

    return _keep(cluster, str(all_models), copy)


def keep_archive(cluster: ClusterProfile, archive: bytes, origin: str) -> KeptTemplates:
    """Keep the templates of a ``tar.gz``; raises as :func:`keep_folder`, also if it is not whole."""

    def unpack(target: Path) -> None:
        try:
            with tarfile.open(fileobj=BytesIO(archive), mode="r:gz") as tar:
                _unpack(tar, target)
        except (tarfile.TarError, EOFError, OSError) as error:
            raise RenderError(f"The templates of {origin} did not come whole: {error}.") from None

    return _keep(cluster, origin, unpack)


def _unpack(tar: tarfile.TarFile, target: Path) -> None:
    target.mkdir()
    size = 0
    for member in tar:
        path = PurePosixPath(member.name)
        if not member.isfile() or path.is_absolute() or ".." in path.parts or path.suffix == ".engine":
            continue
        size += member.size
        if size > _LARGEST_BYTES:
            raise tarfile.TarError(f"more than {_LARGEST_BYTES} bytes, which are no templates")
        content = tar.extractfile(member)
        assert content is not None, member.name
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.read())


def _keep(cluster: ClusterProfile, origin: str, fill: Callable[[Path], None]) -> KeptTemplates:
    folder = cache_folder() / image_key(cluster)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with write_folder_aside(folder) as aside:
            fill(aside / "all_models")
            if find_all_models(aside / "all_models") != aside / "all_models":
                raise RenderError(f"{origin} holds no model templates (no <group>/<model>/{CONFIG}).")
            record = {
                "image": cluster.container.image or f"no container ({cluster.name})",
                "origin": origin,
                "fetched": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
                "files": _sizes(aside / "all_models"),
            }
            write_json(aside / _RECORD, record)
    except OSError as error:
        raise RenderError(f"{error.filename or folder}: {error.strerror or error}.") from None
    kept = _read(folder)
    assert kept is not None, folder
    return kept


def _read(folder: Path) -> KeptTemplates | None:
    try:
        record = read_json(folder / _RECORD)
        return None if record is None else KeptTemplates(folder=folder, **record)
    except (OSError, ValueError, TypeError):
        return None  # not ours, or of a version that wrote otherwise: as good as not there


def _sizes(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
