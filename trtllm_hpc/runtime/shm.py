"""Shared memory on this node: how much there is, and what killed ranks leave."""

from __future__ import annotations

import os
from pathlib import Path

SHM = Path("/dev/shm")


def free_gib() -> float:
    """Free space in /dev/shm, in GiB."""
    statistics = os.statvfs(SHM)
    return statistics.f_bavail * statistics.f_frsize / 2**30


def sweep(prefix: str) -> list[str]:
    """Remove this node's shared memory whose name starts with ``prefix``; returns the names.

    The caller's prefix carries a job id, so nothing of another job can match.
    """
    if not prefix:
        raise ValueError("an empty prefix would remove everybody's shared memory")
    removed = []
    for file in SHM.iterdir():
        if file.name.startswith(prefix):
            try:
                file.unlink()
            except FileNotFoundError:
                continue  # another rank of this node swept it first
            except OSError as error:
                print(f"could not remove {file}: {error}")
                continue
            removed.append(file.name)
    return sorted(removed)
