"""What ranks leave on a node: shared memory and scratch folders."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

SHM = Path("/dev/shm")
SCRATCH = Path("/tmp")
"""Where ``rank.sh`` makes its scratch folder; short and without spaces on every node."""


def shm_free_gib() -> float:
    """Free space in /dev/shm, in GiB."""
    statistics = os.statvfs(SHM)
    return statistics.f_bavail * statistics.f_frsize / 2**30


def sweep(prefix: str) -> list[str]:
    """Remove this node's shared memory and scratch folders that begin with ``prefix``; returns them.

    The caller's prefix carries a job id, so nothing of another job can match.
    """
    if not prefix:
        raise ValueError("an empty prefix would remove everybody's shared memory")
    found = [file for folder in (SHM, SCRATCH) for file in folder.iterdir() if file.name.startswith(prefix)]
    return [str(file) for file in sorted(found) if _remove(file)]


def _remove(file: Path) -> bool:
    try:
        if file.is_dir() and not file.is_symlink():
            shutil.rmtree(file)
        else:
            file.unlink()
    except FileNotFoundError:
        return False  # another rank of this node swept it first
    except OSError as error:
        print(f"could not remove {file}: {error}")
        return False
    return True
