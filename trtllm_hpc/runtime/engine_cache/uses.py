"""Who uses an output: a file in the entry for each run, so that nobody removes it meanwhile."""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trtllm_hpc.paths import RunPaths, read_json
from trtllm_hpc.runtime.engine_cache.cache import Entry, make_shared, remove, write_shared
from trtllm_hpc.runtime.engine_cache.lock import living_owner


@dataclass(frozen=True)
class Use:
    """One run's word that it uses an output."""

    run: str
    """The run folder; it may be gone, or not ours to read."""
    file: Path

    @property
    def age_s(self) -> float:
        """Seconds since it was last said, by this machine's clock."""
        try:
            return max(0.0, time.time() - self.file.stat().st_mtime)
        except OSError:
            return 0.0


def register(entry: Entry, run: Path) -> bool:
    """Note that a run uses an entry; whether its output is still there afterwards.

    Who removes an entry takes it away first and looks at its uses then: either
    the use is seen there, or the output is missed here.
    """
    name = hashlib.sha256(os.fsencode(run)).hexdigest()[:16]
    with suppress(OSError):  # a cache that one may only read can still be used
        make_shared(entry.uses)
        write_shared(entry.uses / f"{name}.json", {"run": os.fsencode(run).decode(errors="surrogateescape")})
    entry.touch()
    sweep(entry)
    return entry.is_whole()


def sweep(entry: Entry) -> list[Path]:
    """Remove what a builder that was killed after its work was done has left beside a whole output."""
    if not entry.is_whole() or living_owner(entry.folder) is not None:
        return []
    return [path for path in entry.asides() if remove(path)]


def uses_of(entry: Entry) -> list[Use]:
    """All uses that were ever noted."""
    found = []
    files: list[Path] = []
    with suppress(OSError):  # none yet, or not ours to read
        files = sorted(entry.uses.glob("*.json"))
    for file in files:
        try:
            record = read_json(file) or {}
            found.append(Use(str(record["run"]), file))
        except (ValueError, TypeError, KeyError, OSError):
            continue
    return found


def entry_of(paths: RunPaths) -> Entry | None:
    """The entry that a run's engine lies in; ``None`` if its engine is not from a cache."""
    if not paths.engine.is_symlink():
        return None
    output = paths.engine.readlink()
    return Entry(output.parent) if output.name == "output" else None


def link(name: Path, output: Path) -> None:
    """Make a link in the run folder point to an output, in one rename."""
    aside = name.with_name(f".{name.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    aside.symlink_to(output)
    aside.replace(name)
