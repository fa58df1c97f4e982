"""A step's finished work made ready to be published: counted, and on the disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from trtllm_hpc.runtime.engine_cache.cache import MANIFEST, Manifest, write_shared

_BLOCK = 2**20


class Empty(Exception):
    """The step ended well and left nothing."""


def files_in(folder: Path) -> Iterator[Path]:
    """Every file of an output but its manifest, in the order of names."""
    for place, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(place, name) for name in sorted(names) if Path(place, name) != folder / MANIFEST)


def sha256_of(path: Path, *, sync: bool = False) -> str:
    """Hash of a file, read whole.

    Args:
        sync: also wait until it is on the disk.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
        if sync:
            os.fsync(file.fileno())
    return digest.hexdigest()


def seal(
    output: Path, *, started_at: float, seconds: float, host: str, job_id: str, versions: Mapping[str, str]
) -> Manifest:
    """Write the manifest of an output, once all of it is on the disk.

    Raises:
        Empty: there is nothing in it.
        OSError: a file cannot be read, or the disk is full.
    """
    files = list(files_in(output)) if output.is_dir() else []
    sizes = [file.stat().st_size for file in files]
    if not sum(sizes):
        raise Empty
    _open_up(output)
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        hashes = pool.map(lambda file: sha256_of(file, sync=True), files)
        names = (str(file.relative_to(output)) for file in files)
        listed = {name: [size, digest] for name, size, digest in zip(names, sizes, hashes, strict=True)}
    manifest = Manifest(listed, started_at + seconds, round(seconds, 3), host, job_id, dict(versions))
    write_shared(output / MANIFEST, asdict(manifest))
    for place, _, _ in os.walk(output):
        sync_folder(Path(place))
    return manifest


def _open_up(output: Path) -> None:
    """Let whoever may read the cache read this too: builders make files for themselves only."""
    readable = output.parent.stat().st_mode & 0o555
    for place, folders, names in os.walk(output):
        for path in (Path(place), *(Path(place, name) for name in (*folders, *names))):
            mode = path.stat().st_mode
            bits = readable if path.is_dir() else readable & 0o444
            with suppress(PermissionError):  # a link to somebody else's file
                path.chmod(mode | bits)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # some file systems do not sync folders
            os.fsync(handle)
    finally:
        os.close(handle)
