"""A lock that is a folder, so that no lock file is left behind."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trtllm_hpc.errors import SandboxError
from trtllm_hpc.sandbox import processes


@contextmanager
def lock(folder: Path, timeout_s: float, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold ``folder``, made if it is missing, against every other caller.

    Args:
        folder: need not exist.
        timeout_s: how long to wait for another holder.
        waiting: called once if there is another holder.

    Raises:
        SandboxError: another process holds it all that time.
    """
    handle = _try(folder)
    if handle is None:
        waiting()
        taken: list[int] = []

        def attempt() -> bool:
            taken.extend(handle for handle in [_try(folder)] if handle is not None)
            return bool(taken)

        if not processes.wait_until(attempt, timeout_s):
            raise SandboxError(
                f"Another process has held {folder} for {timeout_s:g} s.", hint=f"fuser -v {folder}"
            )
        handle = taken[0]
    try:
        yield
    finally:
        os.close(handle)


def _try(folder: Path) -> int | None:
    """A handle that holds the folder, or ``None`` if somebody else does."""
    # Its last holder may remove the folder between any two of these steps, those of mkdir among them.
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (FileExistsError, FileNotFoundError):
        if folder.exists() and not folder.is_dir():
            raise
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_ino == folder.stat().st_ino:
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(handle)
    return None
