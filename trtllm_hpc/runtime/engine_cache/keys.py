"""The key of a step's output: a hash of everything that determines it.

Two models of one family that differ only in the values of their weights, such as a model and its fine-tuned
child, have the same file names, sizes and ``config.json``. So a piece of each tensor is read as well: a few
thousand short reads for the largest models, where a hash of all bytes would read hundreds of GB.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from trtllm_hpc.errors import BuildFailed
from trtllm_hpc.runtime.engine_cache.build_recipe import MODEL, Argument, BuildRecipe, FolderArgument

FORMAT = 1
"""Counted up when the same document comes to mean something else."""
NAME_DIGITS = 16
"""Hexadecimal digits of the key in a folder's name."""
SAMPLE_BYTES, SAMPLES = 4096, 64
"""Bytes that are read from the middle of each tensor; how often in other large files."""
_WHOLE_UP_TO = 64 * 2**20
"""Largest size in bytes of a file without weights that is read whole: configurations, tokenizers, code."""
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".npz", ".nemo")
HUB_RECORD = "hub.json"
"""Beside the folder of a hub's model: the files that it is to have, with size and hash."""
_DOCUMENTATION = {".md", ".png", ".jpg", ".jpeg", ".pdf"}
"""Suffixes of files that no build reads: a change must not cost an hour."""
_LARGEST_HEADER = 100 * 2**20
"""Limit of safetensors' own reader on a file's header."""

Revision = dict[str, list[Any]]
"""Name of each file, relative to the folder, to its size in bytes and a hash of what was read of it."""


class ModelUnreadable(BuildFailed):
    """The model cannot be read on this machine."""


class CapabilityUnknown(BuildFailed):
    """The GPU's compute capability is part of a key, and is not known here."""


@dataclass(frozen=True)
class StepKey:
    """One step's key, and the document that it is the hash of."""

    step: str
    document: dict[str, Any]
    digest: str

    @property
    def name(self) -> str:
        """Name of the entry's folder."""
        return f"{self.step}-{self.digest[:NAME_DIGITS]}"


def digest_of(document: Any) -> str:
    """Return the hash of a JSON document; equal documents have the same."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def step_keys(
    recipe: BuildRecipe, *, compute_capability: str | None, edited_script: str | None = None
) -> tuple[StepKey, ...]:
    """Return the keys of all steps, in their order.

    ``compute_capability`` is that of the GPUs that the engine is for, e.g. ``"9.0"``, and ``edited_script``
    the hash of ``build.sh`` if the user has changed it. Raises ModelUnreadable if the model cannot be read
    here; CapabilityUnknown if a step depends on the GPU, and ``compute_capability`` is ``None``.
    """
    keys: dict[str, StepKey] = {}
    revision = cache(revision_of)  # a folder that several steps read is read once
    for step in recipe.steps:
        folders = [name for name in step.reads if name.startswith("/")]
        document: dict[str, Any] = {
            "format": FORMAT,
            "step": step.name,
            "commands": [
                [_argument(word, folders, is_program=number == 0) for number, word in enumerate(command)]
                for command in step.commands
            ],
            "directory": step.directory,
            "identity": dict(step.identity),
            "inputs": {name: keys[name].digest for name in step.reads if name in keys},
        }
        if MODEL in step.reads and recipe.model_path is not None:
            document["model"] = revision(Path(recipe.model_path))
        if folders:
            document["folders"] = [revision(Path(name)) for name in folders]
        if step.on_gpu:
            if compute_capability is None:
                raise CapabilityUnknown("The GPU's compute capability is not known here.")
            document["compute_capability"] = compute_capability
        if edited_script is not None:
            document["edited_script"] = edited_script
        keys[step.name] = StepKey(step.name, document, digest_of(document))
    return tuple(keys.values())


def _argument(word: Argument, folders: list[str], *, is_program: bool) -> Any:
    """Return a word of a command without any folder's name, which says nothing about the content.

    A program counts by its name: the same Python in another environment builds the same engine.
    A placeholder becomes an object, so that no text can be mistaken for one.
    """
    if isinstance(word, FolderArgument):
        return {"place": word.name, "suffix": word.suffix}
    if is_program:
        # python, python3 and python3.12 may be names of one program.
        return re.sub(r"^python[\d.]*$", "python", PurePosixPath(word).name)
    return {"folder": folders.index(word)} if word in folders else word


def revision_of(folder: Path) -> Revision:
    """Return the revision of a model's folder, or of a single file.

    The folder's own name and place, the files' times, hidden files and documentation do not count. Raises
    ModelUnreadable if it is missing, empty or closed.
    """
    try:
        files = dict(files_of(folder)) if folder.is_dir() else {folder.name: folder}
        with ThreadPoolExecutor(max_workers=8) as pool:  # hides the latency of a network file system
            digests = list(pool.map(_sampled_digest, files.values()))
    except FileNotFoundError as error:
        raise ModelUnreadable(f"{error.filename or folder} is not there.") from None
    except OSError as error:
        raise ModelUnreadable(f"{error.filename or folder} cannot be read ({error.strerror}).") from None
    if not files:
        raise ModelUnreadable(f"{folder} holds no files.")
    return dict(zip(files, digests, strict=True))


def files_of(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield relative name and path of every file that counts, in the order of names."""

    def fail(error: OSError) -> None:
        raise error

    for parent, folders, names in os.walk(folder, onerror=fail):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(parent, name)
            if not name.startswith(".") and path.suffix.lower() not in _DOCUMENTATION:
                yield str(path.relative_to(folder)), path


def needed_files(names: Collection[str]) -> Iterator[str]:
    """Yield the files of a model that a server reads: the weights in one format only."""
    weights = [name for name in names if name.endswith(WEIGHTS)]
    for ending in (".bin", ".safetensors"):
        own = [name for name in names if "/" not in name and name.endswith(ending)]
        # Mistral's own format lies beside that of all others.
        weights = [name for name in own if not name.startswith("consolidated")] or own or weights
    for name in names:
        is_hidden = name.startswith((".", "/")) or ".." in PurePosixPath(name).parts
        if not is_hidden and (name in weights or not name.endswith(WEIGHTS)):
            yield name


def is_large(path: Path, size: int) -> bool:
    """Whether a file holds weights, or is too large to be read whole each time."""
    return path.suffix.lower() in WEIGHTS or size > _WHOLE_UP_TO


def _sampled_digest(path: Path) -> list[Any]:
    """Return a file's size and the hash of what is read of it."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        ranges = [(0, size)]
        if is_large(path, size):
            tensors = _tensors(file.fileno(), size) if path.suffix.lower() == ".safetensors" else []
            if tensors:
                middles = (begin + max(0, (end - begin - SAMPLE_BYTES) // 2) for begin, end in tensors)
                ranges = [(0, tensors[0][0]), *((middle, SAMPLE_BYTES) for middle in middles)]
            elif size > SAMPLES * SAMPLE_BYTES:
                places = (number * (size - SAMPLE_BYTES) // (SAMPLES - 1) for number in range(SAMPLES))
                ranges = [(place, SAMPLE_BYTES) for place in places]
        digest = hashlib.sha256()
        for offset, count in ranges:
            digest.update(os.pread(file.fileno(), count, offset))
    return [size, digest.hexdigest()]


def _tensors(handle: int, size: int) -> list[tuple[int, int]]:
    """Return begin and end of each tensor; nothing if this is no safetensors file after all."""
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
