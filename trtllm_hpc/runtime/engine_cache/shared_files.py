"""Files and folders in the cache, which several users and nodes share."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from trtllm_hpc.paths import write_aside

_BLOCK_BYTES = 2**20


def make_shared(folder: Path) -> None:
    """Make a folder with its parent's permissions, whatever the umask; leave an existing folder alone."""
    with suppress(FileExistsError):
        folder.mkdir()
        with suppress(PermissionError):  # a file server can give new files another owner
            folder.chmod(folder.parent.stat().st_mode & 0o7777)


def write_shared(path: Path, record: Any) -> None:
    """Write a JSON document atomically, readable to everybody who may read its folder."""
    with write_aside(path) as aside:
        with aside.open("w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        aside.chmod(path.parent.stat().st_mode & 0o666)


def remove(path: Path, attempts: int = 5) -> bool:
    """Remove a folder or file that is no longer used; return whether it is gone.

    A process of a killed build may still be writing into the folder, hence several attempts.
    """
    for attempt in range(attempts):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        if not os.path.lexists(path):
            return True
        time.sleep(0.1 * attempt)
    return False


def sha256_of(path: Path, *, sync: bool = False) -> str:
    """Return a file's SHA-256; with ``sync``, return only once the file is on the disk."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
        if sync:
            os.fsync(file.fileno())
    return digest.hexdigest()


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # some file systems cannot sync folders
            os.fsync(handle)
    finally:
        os.close(handle)
