"""The cache's folder: one entry for each step's output, under the name of its key.

    <engines>/build-3f0c9a…/key.json       what the key is the hash of
                            output/         there only when it is whole
                            building.<n>.<x>/  of a build under lock.<n> that runs, or was killed
                            lock.<n>        see ``lock``
                            uses/           the runs that use it
                            used            touched at each use

As open as the cache's folder itself is, so is everything in it: a group that
shares the folder shares the engines.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_hpc.paths import read_json
from trtllm_hpc.runtime.engine_cache.keys import SHOWN, StepKey, digest_of

MANIFEST = "trtllm-hpc-manifest.json"
"""File in a whole output that names all others."""

_ENTRY = re.compile(rf"[a-z_][a-z0-9_]*-[0-9a-f]{{{SHOWN}}}")
_REMOVED = re.compile(rf"\.removed-(output|{_ENTRY.pattern})-[0-9a-f]{{8}}")
_STAGING = re.compile(r"building\.(?:(\d+)\.)?[0-9a-f]{16}")
_INSIDE = re.compile(
    rf"key\.json|damaged\.txt|output|uses|used|lock\.\d+|{_STAGING.pattern}|\.(key\.json|damaged\.txt|building)\..*"
)
"""Names of entries, of what is on its way out, and of what an entry holds. Whoever points the cache at a
folder with other things in it must not lose them."""


@dataclass(frozen=True)
class Manifest:
    """What a whole output is made of, and how it came to be."""

    files: Mapping[str, list[Any]]
    """Relative name to size in bytes and SHA-256."""
    built_at: float
    """Seconds since the epoch, by the builder's clock."""
    seconds: float
    """How long its commands took."""
    host: str
    job_id: str
    versions: Mapping[str, str]
    """What was found installed, e.g. ``tensorrt_llm``."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(int(size) for size, _ in self.files.values())

    @classmethod
    def read(cls, output: Path) -> Manifest | None:
        """The manifest of an output; ``None`` if there is none, or it is damaged."""
        try:
            record = read_json(output / MANIFEST)
            return None if record is None else cls(**record)
        except (ValueError, TypeError, OSError):
            return None


class Entry:
    """The folder of one key. Nothing here needs to exist."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"Entry({str(self.folder)!r})"

    @property
    def name(self) -> str:
        """Step and the key's first digits."""
        return self.folder.name

    @property
    def output(self) -> Path:
        """The finished output."""
        return self.folder / "output"

    @property
    def uses(self) -> Path:
        """Folder with a file for each run that uses the output."""
        return self.folder / "uses"

    @property
    def used(self) -> Path:
        """Touched at each use."""
        return self.folder / "used"

    @property
    def damage(self) -> Path:
        """There once the output, read whole, was not what was built: what is wrong, a line each."""
        return self.folder / "damaged.txt"

    def key(self) -> dict[str, Any] | None:
        """What ``key.json`` says; ``None`` if it is not there or damaged."""
        try:
            record = read_json(self.folder / "key.json")
        except (ValueError, OSError):
            return None
        return record if isinstance(record, dict) and isinstance(record.get("document"), dict) else None

    def missing(self) -> list[str] | None:
        """What is wrong with the output at a glance: files missing or of another size, or known damage.

        ``None`` means that there is no output; an empty list that it is whole.

        Raises:
            PermissionError: the entry is closed to this person.
        """
        if not self.output.is_dir():
            return None
        manifest = Manifest.read(self.output)
        if manifest is None:
            return [f"{MANIFEST} is missing or damaged"]
        wrong = [
            complaint
            for name, (size, _) in manifest.files.items()
            if (complaint := _wrong_size(self.output / name, int(size))) is not None
        ]
        return wrong or self._known_damage()

    def _known_damage(self) -> list[str]:
        try:
            return self.damage.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []

    def is_whole(self) -> bool:
        """Whether the output is there, with all files in their sizes, and may be read."""
        with suppress(PermissionError):
            return self.missing() == []
        return False

    def make(self, key: StepKey, about: Mapping[str, str], chain: Mapping[str, Any]) -> None:
        """Make the folder, with its key.

        Args:
            chain: the documents of this step and of those before it, by step:
                what an entry is compared by when another is missed.
        """
        make_shared(self.folder)
        if self.key() is None:
            record = {"key": key.digest, "document": key.document, "about": dict(about), "chain": dict(chain)}
            write_shared(self.folder / "key.json", record)

    def touch(self) -> None:
        """Note that the output was just used; a cache that one may only read stays as it is."""
        with suppress(OSError):
            self.used.touch()

    def asides(self) -> list[Path]:
        """Folders and files that something which was killed has left."""
        with suppress(OSError):
            return [path for path in self.folder.iterdir() if path.name.startswith(("building.", "."))]
        return []

    def clear(self, before: int) -> None:
        """Remove what builds under locks before this number have left, and what was killed half-written.

        A folder goes under one rename first: a builder that wakes up late finds it gone, never a part
        of its files. Being late itself, a builder takes away nothing of those that came after it.
        """
        for left in self.asides():
            staging = _STAGING.fullmatch(left.name)
            if staging is None:
                remove(left)
            elif int(staging[1] or 0) < before:
                aside = left.with_name(f".{left.name}")
                with suppress(OSError):  # its builder has just removed it, or it is not ours to move
                    left.rename(aside)
                remove(aside)
                remove(left)

    def key_fault(self) -> str | None:
        """What is wrong with the entry's own key, if anything."""
        record = self.key()
        if record is None:
            return "key.json is missing or damaged"
        digest = digest_of(record["document"])
        if digest != record.get("key") or self.name != f"{record['document'].get('step')}-{digest[:SHOWN]}":
            return "key.json is not the key that the folder is named after"
        return None


class Cache:
    """The folder of all entries; it need not exist."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def entry(self, key: StepKey) -> Entry:
        """The entry of a key, there or not."""
        return Entry(self.folder / key.name)

    def entries(self) -> list[Entry]:
        """All entries, by name; other folders that lie there are none."""
        return [Entry(path) for path in sorted(self._folders()) if _is_entry(path)]

    def removed(self) -> list[Path]:
        """What was removed and is still on the disk, since its remover was killed."""
        return [path for path in self._folders() if _REMOVED.fullmatch(path.name)]

    def put_aside(self, path: Path) -> Path:
        """Take an entry out under one rename, so that nobody sees half of it."""
        aside = self.folder / f".removed-{path.name}-{secrets.token_hex(4)}"
        path.rename(aside)
        return aside

    def _folders(self) -> Iterator[Path]:
        with suppress(FileNotFoundError, NotADirectoryError):
            yield from (path for path in self.folder.iterdir() if path.is_dir())


def _is_entry(path: Path) -> bool:
    if not _ENTRY.fullmatch(path.name):
        return False
    try:
        return all(_INSIDE.fullmatch(inner.name) for inner in path.iterdir())
    except PermissionError:
        return True
    except OSError:
        return False


def _wrong_size(path: Path, size: int) -> str | None:
    try:
        found = path.stat().st_size
    except OSError:
        return f"{path.name} is missing"
    return None if found == size else f"{path.name} has {found} bytes instead of {size}"


def make_shared(folder: Path) -> None:
    """Make a folder as open as the one it lies in, whatever the umask says; one that is there stays."""
    with suppress(FileExistsError):
        folder.mkdir()
        with suppress(PermissionError):  # made by another's identity on the file server
            folder.chmod(folder.parent.stat().st_mode & 0o7777)


def write_shared(path: Path, record: Any) -> None:
    """Write a JSON document whole, readable to whoever may read the folder it lies in."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(path.parent.stat().st_mode & 0o666)
        Path(name).replace(path)
    except BaseException:  # whatever ends this, a nameless file must not stay
        Path(name).unlink(missing_ok=True)
        raise


def remove(path: Path, attempts: int = 5) -> bool:
    """Remove a folder or file that nobody should use; whether it is gone.

    A process of a killed build may still be writing in it: then it takes a few rounds.
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
