"""Reading every byte of an engine: by ``engines verify``, and in the background while a server starts."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from trtllm_hpc.paths import RunPaths, write_text
from trtllm_hpc.runtime.engine_cache.cache import Entry, Manifest, entry_of, files_in, size_fault
from trtllm_hpc.runtime.engine_cache.files import sha256_of

_VALID_S = 86_400.0
"""An engine that was read whole is not read again for a day, unless a file of it has changed."""


def wrong_files(
    entry: Entry, manifest: Manifest, progress: Callable[[str], None] = lambda name: None
) -> list[str]:
    """Read all files of a finished output and compare them with its manifest.

    ``progress`` is called with each file's name before it is read. The entry remembers damage that no file's
    size shows, or that there is none.
    """
    wrong = []
    present = {str(file.relative_to(entry.output)) for file in files_in(entry.output)}
    for name, (size, digest) in manifest.files.items():
        progress(name)
        file = entry.output / name
        try:
            fault = size_fault(file, name, size)
            if fault is None and sha256_of(file) != digest:
                fault = f"{name} is not what was built: its SHA-256 differs"
        except OSError as error:
            fault = f"{name} cannot be read: {error.strerror}"
        if fault is not None:
            wrong.append(fault)
    wrong += [f"{name} was not built there" for name in sorted(present - manifest.files.keys())]
    with suppress(OSError):  # a read-only cache
        if wrong:
            write_text(entry.damage, "".join(f"{line}\n" for line in wrong), mode=0o644)
        else:
            entry.damage.unlink(missing_ok=True)
            entry.verified.touch()
    return wrong


class EngineCheck:
    """Reads a run's engine in a thread of the lowest priority; the server does not wait for it."""

    def __init__(self, paths: RunPaths) -> None:
        self.fault: str | None = None
        """What is wrong with the engine, in a sentence that names file and entry."""
        entry = entry_of(paths)
        if entry is not None:
            threading.Thread(target=self._run, args=(entry,), name="engine", daemon=True).start()

    def _run(self, entry: Entry) -> None:
        with suppress(OSError):
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))
        with suppress(OSError):  # nobody is to end because a file system is away for a moment
            manifest = entry.manifest()
            if manifest is None or _was_verified(entry, manifest):
                return
            began = time.monotonic()
            # A file that somebody has added is no reason to end a server.
            wrong = [
                fault for fault in wrong_files(entry, manifest) if not fault.endswith("was not built there")
            ]
            if wrong:
                then = "the next submission builds it again"
                self.fault = f"the engine {entry.name} is damaged: {wrong[0]} ({entry.output}); {then}"
            else:
                print(f"engine {entry.name}: verified in {time.monotonic() - began:.1f} s", flush=True)


def _was_verified(entry: Entry, manifest: Manifest) -> bool:
    """Return whether no file has changed since the engine was read whole, and that was not long ago."""
    try:
        verified_at = entry.verified.stat().st_mtime
        changed_at = max((entry.output / name).stat().st_ctime for name in manifest.files)
    except (OSError, ValueError):
        return False
    return changed_at < verified_at and time.time() - verified_at < _VALID_S
