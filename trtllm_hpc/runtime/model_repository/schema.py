"""Triton's own schema of ``config.pbtxt``, and the protobuf library that reads it.

Where this package is installed both come from there (tritonclient's ``model_config_pb2``). In a container
they may be missing or of the wrong version: then both come from the zipapp, in protobuf's pure-Python form.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import zipfile
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

VENDORED = "vendored"
"""Folder of the zipapp with protobuf and the schema."""

_MODULE = "model_config_pb2"


@lru_cache(maxsize=1)
def schema() -> ModuleType:
    """Return the module with ``ModelConfig``."""
    archive = _archive()
    if archive is not None:
        _prefer(f"{archive}/{VENDORED}")
        return importlib.import_module(_MODULE)
    return _installed()


def text_format() -> Any:
    """Return protobuf's module for the text format, of the version that fits ``schema()``."""
    schema()
    return importlib.import_module("google.protobuf.text_format")


def json_format() -> Any:
    """Return protobuf's module for messages as plain data, likewise."""
    schema()
    return importlib.import_module("google.protobuf.json_format")


def _archive() -> Path | None:
    """Return the zipapp that this module was read from, if protobuf is in it."""
    for folder in Path(__file__).parents:
        if folder.is_file():
            with zipfile.ZipFile(folder) as archive:
                vendored = f"{VENDORED}/{_MODULE}.py" in archive.namelist()
            return folder if vendored else None
    return None


def _prefer(folder: str) -> None:
    """Import ``google`` from ``folder`` alone, whatever else this Python has under that name."""
    # The compiled part of another version would be found otherwise, beside our Python part.
    os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"
    for name in [name for name in sys.modules if name.partition(".")[0] == "google"]:
        del sys.modules[name]
    sys.path.insert(0, folder)
    importlib.invalidate_caches()


def _installed() -> ModuleType:
    # By its file: importing tritonclient.grpc costs the start of grpc, which nothing here needs.
    package = importlib.util.find_spec("tritonclient")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("there is neither tritonclient nor protobuf here")
    file = Path(package.submodule_search_locations[0]) / "grpc" / f"{_MODULE}.py"
    spec = importlib.util.spec_from_file_location(f"trtllm_hpc_{_MODULE}", file)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"tritonclient has no {file.name}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
