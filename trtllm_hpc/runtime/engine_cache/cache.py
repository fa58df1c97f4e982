"""The cache's folder: one entry for each step's output, named after its key.

    <engines>/build-3f0c9a…/key.json       what the key is the hash of
                            lock            held by who builds or removes the entry, and names the builder
                            building/       while a build runs: a folder of the builder's own
                            output/         there only when it is complete
                            uses/           the runs that use the output
                            used            touched at each use
                            damaged.txt     what reading every byte has found wrong

Everything in it has the permissions of the cache's folder: a group that shares the folder shares the engines.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_hpc.paths import RunPaths, locked, read_json, write_aside
from trtllm_hpc.runtime.engine_cache.keys import NAME_DIGITS, StepKey, digest_of
from trtllm_hpc.runtime.engine_cache.shared_files import make_shared, remove, write_shared
from trtllm_hpc.runtime.records import JsonRecord

MANIFEST = "trtllm-hpc-manifest.json"
"""File that makes an output complete and lists all its other files."""
_ENTRY = re.compile(rf"[a-z_][a-z0-9_]*-[0-9a-f]{{{NAME_DIGITS}}}")
_REMOVED = re.compile(rf"\.removed-(output|{_ENTRY.pattern})-[0-9a-f]{{8}}")
_LEFTOVER = re.compile(r"building|\.(key\.json|damaged\.txt|building)\..*")
"""Names that only a killed build leaves."""
_CONTENT = re.compile(rf"key\.json|damaged\.txt|output|uses|used|lock|{_LEFTOVER.pattern}")
"""All names in an entry. A folder that contains any other name is not the cache's and is never touched."""


@dataclass(frozen=True)
class Manifest(JsonRecord):
    """The content of a complete output, and how it was built."""

    files: Mapping[str, list[Any]]
    """Size in bytes and SHA-256 of each file, by the file's relative name."""
    built_at: float
    """Seconds since the epoch, by the builder's clock."""
    seconds: float
    """Duration of the step's commands."""
    host: str
    job_id: str
    versions: Mapping[str, str]
    """Versions of the installed packages, e.g. of ``tensorrt_llm``."""

    @property
    def size(self) -> int:
        """Size of all files in bytes."""
        return sum(int(size) for size, _ in self.files.values())


class EntryHeld(Exception):
    """Another process is building or removing the entry."""


@dataclass(frozen=True)
class EntryLock:
    """An entry's lock while this process holds it."""

    file: Path
    text: str
    """The lock file's content, different for each holder."""
    excludes: bool
    """Whether the lock keeps other processes out; ``False`` on a file system without locks."""

    def is_lost(self) -> bool:
        """Return whether the entry was removed, or another process has the lock now.

        A file server can give the lock away after it has not heard from this machine for a while.
        """
        try:
            text = self.file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return True
        return self.excludes and text != self.text


CREATION_S = 3_600.0
"""Seconds that a registered run may lack its folder: a run is registered before its folder is written."""


@dataclass(frozen=True)
class Use:
    """A record that a run uses an output."""

    run: str
    """The run folder; it may be gone or unreadable."""
    file: Path
    """The record's file."""
    has_folder: bool
    """Whether the run folder existed when the record was written: a run registers before and after that."""

    @property
    def age_s(self) -> float:
        """Seconds since the record was written, by this machine's clock."""
        try:
            return max(0.0, time.time() - self.file.stat().st_mtime)
        except OSError:
            return 0.0


@dataclass(frozen=True)
class CacheEntry:
    """The folder of one key. Neither the folder nor anything in it needs to exist."""

    folder: Path

    @property
    def name(self) -> str:
        """The folder's name: the step and the first digits of the key."""
        return self.folder.name

    @property
    def output(self) -> Path:
        """The finished output."""
        return self.folder / "output"

    @property
    def used(self) -> Path:
        """File whose modification time is that of the last use."""
        return self.folder / "used"

    @property
    def damage(self) -> Path:
        """File with the faults that `engines verify` found in the output, one a line."""
        return self.folder / "damaged.txt"

    def key(self) -> dict[str, Any] | None:
        """Return the content of ``key.json``; ``None`` if it is missing or damaged."""
        try:
            record = read_json(self.folder / "key.json")
        except (ValueError, OSError):
            return None
        return record if isinstance(record, dict) and isinstance(record.get("document"), dict) else None

    def manifest(self) -> Manifest | None:
        """Return the manifest of the output; ``None`` if it is missing or damaged."""
        return Manifest.read(self.output / MANIFEST)

    def key_fault(self) -> str | None:
        """Return what is wrong with ``key.json``; ``None`` if nothing is."""
        record = self.key()
        if record is None:
            return "key.json is missing or damaged"
        digest = digest_of(record["document"])
        name = f"{record['document'].get('step')}-{digest[:NAME_DIGITS]}"
        if (digest, name) != (record.get("key"), self.name):
            return "key.json is not the key that the folder is named after"
        return None

    def faults(self) -> list[str] | None:
        """Return the output's faults by names, sizes and known damage; ``None`` if there is no output.

        Raises PermissionError if this user may not read the entry.
        """
        if not self.output.is_dir():
            return None
        manifest = self.manifest()
        if manifest is None:
            return [f"{MANIFEST} is missing or damaged"]
        faults = [size_fault(self.output / name, name, size) for name, (size, _) in manifest.files.items()]
        if any(faults):
            return [fault for fault in faults if fault is not None]
        try:
            return self.damage.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []

    def is_complete(self) -> bool:
        """Return whether the output is readable and has all its files in the right sizes."""
        with suppress(PermissionError):
            return self.faults() == []
        return False

    def make(self, key: StepKey, about: Mapping[str, str], chain: Mapping[str, Any]) -> None:
        """Make the folder and its ``key.json``.

        ``chain`` has the documents of this step and the steps before it, by name: ``engines`` compares them
        with a later key to explain why the cache missed.
        """
        make_shared(self.folder)
        if self.key() is None:
            record = {"key": key.digest, "document": key.document, "about": about, "chain": chain}
            write_shared(self.folder / "key.json", record)

    def register(self, run: Path) -> bool:
        """Record that a run uses the output; return whether the output is complete afterwards.

        Pruning first moves an entry away, then reads its uses. So either the pruning process sees this use,
        or this method sees that the output is gone.
        """
        name = hashlib.sha256(os.fsencode(run)).hexdigest()[:16]
        with suppress(OSError):  # a run can use a read-only cache
            make_shared(self.folder / "uses")
            name_of_run = os.fsencode(run).decode(errors="surrogateescape")
            record = {"run": name_of_run, "has_folder": run.is_dir()}
            write_shared(self.folder / "uses" / f"{name}.json", record)
        with suppress(OSError):
            self.used.touch()
        self.remove_leftovers()
        return self.is_complete()

    def uses(self) -> list[Use]:
        """Return all recorded uses."""
        uses = []
        with suppress(OSError):  # the folder is unreadable, or not there yet
            for file in sorted((self.folder / "uses").glob("*.json")):
                with suppress(ValueError, TypeError, KeyError, OSError):
                    record = read_json(file) or {}
                    uses.append(Use(str(record["run"]), file, bool(record.get("has_folder"))))
        return uses

    @contextmanager
    def locked(self, owner: str, *, wait_s: float = 0.0) -> Iterator[EntryLock]:
        """Lock the entry against builds and removals on all machines; they see ``owner`` as the holder.

        Raises EntryHeld after ``wait_s``, or if the entry was removed; OSError if the lock cannot be written.
        """
        file, text = self.folder / "lock", f"{owner}\n{secrets.token_hex(8)}\n"
        if not file.exists():
            with suppress(FileNotFoundError):
                file.touch()
                file.chmod(self.folder.stat().st_mode & 0o666)
        with locked(file, EntryHeld(), wait_s=wait_s) as excludes:
            file.write_text(text, encoding="utf-8")
            yield EntryLock(file, text, excludes)

    def holder(self) -> str | None:
        """Return the holder of the lock, e.g. ``job 17 on node-3``; ``None`` if the entry is not locked.

        On a file system without locks, an unfinished output counts as being built.
        """
        try:
            with (self.folder / "lock").open(encoding="utf-8") as file:
                with suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    return None
                return file.readline().strip() or "another process"
        except FileNotFoundError:
            return None
        except OSError:
            return "another process" if (self.folder / "building").is_dir() else None

    def clear(self) -> None:
        """Remove leftovers of killed builds; the caller must hold a lock that excludes others.

        The folder ``building`` is renamed first, so that a build that has lost its lock finds its own work
        complete or not at all.
        """
        with suppress(FileNotFoundError):
            (self.folder / "building").rename(self.folder / f".building.{secrets.token_hex(4)}")
        for path in list(self.folder.iterdir()):
            if _LEFTOVER.fullmatch(path.name):
                remove(path)

    def put_aside(self) -> Path:
        """Move the entry away with one rename, so that nobody sees a part of it; return its new path."""
        return self.folder.rename(self.folder.with_name(f".removed-{self.name}-{secrets.token_hex(4)}"))

    def remove_leftovers(self) -> None:
        """Remove the leftovers of a build that was killed just after its output was complete."""
        with suppress(OSError, EntryHeld):
            if self.is_complete() and any(_LEFTOVER.fullmatch(path.name) for path in self.folder.iterdir()):
                with self.locked("") as lock:
                    if lock.excludes:
                        self.clear()


class Cache:
    """The folder of all entries; the folder need not exist."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def entry(self, key: StepKey) -> CacheEntry:
        """Return the entry of a key, whether it exists or not."""
        return CacheEntry(self.folder / key.name)

    def entries(self) -> list[CacheEntry]:
        """Return all entries, sorted by name; folders that are not the cache's own are skipped."""
        entries = []
        for path in sorted(path for path in self._folders() if _ENTRY.fullmatch(path.name)):
            try:
                is_own = all(_CONTENT.fullmatch(inner.name) for inner in path.iterdir())
            except OSError as error:
                is_own = isinstance(error, PermissionError)
            entries += [CacheEntry(path)] * is_own
        return entries

    def remove_leftovers(self) -> None:
        """Remove the leftovers of killed builds and removals, except where a build is running."""
        for entry in self.entries():
            entry.remove_leftovers()
        for path in list(self._folders()):
            if _REMOVED.fullmatch(path.name):
                remove(path)

    def _folders(self) -> Iterator[Path]:
        with suppress(FileNotFoundError, NotADirectoryError):
            yield from (path for path in self.folder.iterdir() if path.is_dir())


def size_fault(path: Path, name: str, size: int) -> str | None:
    """Return what is wrong with a file that should have ``size`` bytes; its content is not read."""
    try:
        actual = path.stat().st_size
    except OSError:
        return f"{name} is missing"
    return None if actual == size else f"{name} has {actual} bytes instead of {size}"


def files_in(output: Path) -> Iterator[Path]:
    """Yield every file of an output except its manifest, sorted by name."""
    for parent, folders, names in os.walk(output):
        folders.sort()
        yield from (Path(parent, name) for name in sorted(names) if Path(parent, name) != output / MANIFEST)


def entry_of(paths: RunPaths) -> CacheEntry | None:
    """Return the entry of a run's engine; ``None`` if the engine is not from a cache."""
    if not paths.engine.is_symlink():
        return None
    output = paths.engine.readlink()
    return CacheEntry(output.parent) if output.name == "output" else None


def link(name: Path, output: Path) -> None:
    """Make the link ``name`` in the run folder point to an output, atomically."""
    with write_aside(name) as aside:
        aside.unlink()
        aside.symlink_to(output)
