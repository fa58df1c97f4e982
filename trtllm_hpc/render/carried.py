"""What the zipapp carries of other packages: protobuf, for containers that lack it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata, resources
from typing import TYPE_CHECKING

from trtllm_hpc.runtime.model_repository.schema import CARRIED

if TYPE_CHECKING:
    from importlib.abc import Traversable

_NOT_NEEDED = ("compiler", "pyext", "testdata", "util", "__pycache__")
"""Parts of protobuf for its own compiler, its compiled forms and its tests."""


def protobuf_files() -> dict[str, bytes]:
    """protobuf in pure Python and Triton's schema, by their names in the zipapp.

    For ``runtime_zipapp`` when the job itself fills the model repository. The
    two are those installed here, so they fit each other.
    """
    protobuf = resources.files("google.protobuf")
    files = dict(_python(protobuf, f"{CARRIED}/google/protobuf"))
    # A package of its own, and not a part of whatever "google" the container has: another version's
    # compiled part would be found beside it.
    files[f"{CARRIED}/google/__init__.py"] = b""
    schema = resources.files("tritonclient").joinpath("grpc").joinpath("model_config_pb2.py")
    files[f"{CARRIED}/model_config_pb2.py"] = schema.read_bytes()
    files |= _licence()
    return files


def _python(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        if item.is_dir():
            if item.name not in _NOT_NEEDED:
                yield from _python(item, f"{name}/{item.name}")
        elif item.name.endswith(".py"):
            yield f"{name}/{item.name}", item.read_bytes()


def _licence() -> dict[str, bytes]:
    """protobuf's licence, which every copy has to have with it."""
    text = metadata.distribution("protobuf").read_text("LICENSE")
    return {f"{CARRIED}/google/protobuf/LICENSE": text.encode()} if text else {}
