"""The key of a step's output: a hash of everything that determines the output.

A model and a fine-tuned version of it have the same file names, sizes and ``config.json``. So the key also
contains a hash of a piece of each tensor: a few thousand short reads for the largest models, where a hash of
all bytes would read hundreds of GB.
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
"""Version of the document's format; incremented when the same document gets another meaning."""
NAME_DIGITS = 16
"""Hexadecimal digits of the key in a folder's name."""
SAMPLE_BYTES, SAMPLES = 4096, 64
"""Bytes that are read from the middle of each tensor; number of such samples in other large files."""
_WHOLE_UP_TO = 64 * 2**20
"""Largest size in bytes of a file without weights that is read whole: configurations, tokenizers, code."""
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".npz", ".nemo")
HUB_RECORD = "hub.json"
"""File beside a model fetched from a hub: the files that the model must have, with size and hash."""
_DOCUMENTATION = {".md", ".png", ".jpg", ".jpeg", ".pdf"}
"""Suffixes of files that no build reads: changing them must not cause an hour's build."""
_LARGEST_HEADER = 100 * 2**20
"""Largest header in bytes that safetensors' own reader accepts."""

Revision = dict[str, list[Any]]
"""Size in bytes of each file and a hash of the bytes that were read, by the file's relative name."""


class ModelUnreadable(BuildFailed):
    """The model cannot be read on this machine."""


class CapabilityUnknown(BuildFailed):
    """A key depends on the GPU's compute capability, which is not known here."""


@dataclass(frozen=True)
class StepKey:
    """A step's key: a document and its hash."""

    step: str
    document: dict[str, Any]
    """Everything that determines the output."""
    digest: str
    """The document's hash."""

    @property
    def name(self) -> str:
        """Name of the key's folder in the cache."""
        return f"{self.step}-{self.digest[:NAME_DIGITS]}"


def digest_of(document: Any) -> str:
    """Return the hash of a JSON document; equal documents have equal hashes."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def step_keys(
    recipe: BuildRecipe, *, compute_capability: str | None, edited_script: str | None = None
) -> tuple[StepKey, ...]:
    """Return the keys of all steps, in their order.

    ``compute_capability`` is that of the engine's GPUs, e.g. ``"9.0"``; ``edited_script`` is the hash of
    ``build.sh`` if the user has changed it. Raises ModelUnreadable if the model cannot be read here;
    CapabilityUnknown if a step depends on the GPU, and ``compute_capability`` is ``None``.
    """
    keys: dict[str, StepKey] = {}
    revision = cache(revision_of)  # several steps may read the same folder
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
    """Return a word of a command for the key, without folders' names, which do not affect the output.

    A program counts by its name: the same Python in another environment builds the same engine.
    A placeholder becomes an object, so that no text can be mistaken for a placeholder.
    """
    if isinstance(word, FolderArgument):
        return {"place": word.name, "suffix": word.suffix}
    if is_program:
        # python, python3 and python3.12 can be the same program.
        return re.sub(r"^python[\d.]*$", "python", PurePosixPath(word).name)
    return {"folder": folders.index(word)} if word in folders else word


def revision_of(folder: Path) -> Revision:
    """Return the revision of a model's folder, or of a single file.

    The folder's own path, the files' times, hidden files and documentation do not count. Raises
    ModelUnreadable if the folder is missing, empty or unreadable.
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
        raise ModelUnreadable(f"{folder} contains no files.")
    return dict(zip(files, digests, strict=True))


def files_of(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield relative name and path of every file that belongs to a revision, sorted by name."""

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
        # Mistral's models have the same weights twice: in the usual format and as consolidated.*.
        weights = [name for name in own if not name.startswith("consolidated")] or own or weights
    for name in names:
        is_hidden = name.startswith((".", "/")) or ".." in PurePosixPath(name).parts
        if not is_hidden and (name in weights or not name.endswith(WEIGHTS)):
            yield name


def is_large(path: Path, size: int) -> bool:
    """Return whether a file contains weights, or is too large to be read completely each time."""
    return path.suffix.lower() in WEIGHTS or size > _WHOLE_UP_TO


def _sampled_digest(path: Path) -> list[Any]:
    """Return a file's size and the hash of its header and samples, or of all its bytes if it is small."""
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
    """Return begin and end of each tensor in the file; nothing if the file is not safetensors after all."""
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
