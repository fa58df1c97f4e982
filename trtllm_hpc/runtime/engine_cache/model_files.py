"""What a model's folder holds, without reading all of its weights.

Two models of one family that differ in nothing but their weights' values (a
model and its fine-tuned child) have the same names, the same sizes and the same
``config.json``. So the weights are looked at too: a piece of each tensor, which
is a few thousand short reads for the largest models, where a hash of all bytes
would read hundreds of GB.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SAMPLE_BYTES = 4096
"""Read from the middle of each tensor; of other large files, as often as below."""

SAMPLES = 64

_WHOLE_UP_TO = 64 * 2**20
"""Files up to so many bytes that are no weights are read whole: configurations, tokenizers, code."""

_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".npz", ".nemo"}

_FOR_PEOPLE = {".md", ".png", ".jpg", ".jpeg", ".pdf"}
"""Endings of files that no build reads: their change must not cost an hour."""

_LARGEST_HEADER = 100 * 2**20
"""Bound of safetensors' own reader on a file's header."""


class NoModel(Exception):
    """The folder cannot be read here."""


Revision = dict[str, list[Any]]
"""Name of each file, relative to the folder, to its size in bytes and a hash of what was read of it."""


def revision_of(folder: Path) -> Revision:
    """The revision of a model's folder, or of a single file.

    The folder's own name and place, the files' times, hidden files and what is
    for people only are no part of it.

    Raises:
        NoModel: it is not there, is empty, or may not be read.
    """
    try:
        files = dict(_files(folder)) if folder.is_dir() else {folder.name: folder}
        with ThreadPoolExecutor(max_workers=8) as pool:  # the file system is far: it answers several at once
            looked = list(pool.map(_look, files.values()))
    except FileNotFoundError as error:
        raise NoModel(f"{error.filename or folder} is not there") from None
    except OSError as error:
        raise NoModel(f"{error.filename or folder} cannot be read ({error.strerror})") from None
    if not files:
        raise NoModel(f"{folder} holds no files")
    return dict(zip(files, looked, strict=True))


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file that counts, by its relative name and in the order of names."""

    def refuse(error: OSError) -> None:
        raise error

    for place, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(place, name)
            if not name.startswith(".") and path.suffix.lower() not in _FOR_PEOPLE:
                yield str(path.relative_to(folder)), path


def _look(path: Path) -> list[Any]:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        is_weights = path.suffix.lower() in _WEIGHTS
        places = _places(file.fileno(), path, size) if is_weights or size > _WHOLE_UP_TO else [(0, size)]
        digest = hashlib.sha256()
        for offset, count in places:
            digest.update(os.pread(file.fileno(), count, offset))
    return [size, digest.hexdigest()]


def _places(handle: int, path: Path, size: int) -> list[tuple[int, int]]:
    """Offset and length of each piece to read of a large file."""
    tensors = _tensors(handle, size) if path.suffix.lower() == ".safetensors" else []
    if tensors:
        middles = (begin + max(0, (end - begin - SAMPLE_BYTES) // 2) for begin, end in tensors)
        return [(0, tensors[0][0]), *((middle, SAMPLE_BYTES) for middle in middles)]
    if size <= SAMPLES * SAMPLE_BYTES:
        return [(0, size)]
    return [(number * (size - SAMPLE_BYTES) // (SAMPLES - 1), SAMPLE_BYTES) for number in range(SAMPLES)]


def _tensors(handle: int, size: int) -> list[tuple[int, int]]:
    """Begin and end of each tensor; empty if this is no safetensors file after all."""
    length = int.from_bytes(os.pread(handle, 8, 0), "little")
    if not 2 <= length <= min(size - 8, _LARGEST_HEADER):
        return []
    try:
        header = json.loads(os.pread(handle, length, 8))
        offsets = [entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"]
        begin = 8 + length
        return sorted((begin + int(first), begin + int(last)) for first, last in offsets if last > first)
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
