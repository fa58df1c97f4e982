"""The folder in an entry where one build works, from the lock it holds to the output it publishes.

A builder may stand still between any two lines, until others take it for dead, and wake up again. Then it
must neither harm what they build or have built, nor publish. Looking at the lock is not enough: it may be
lost after the look. So each step here is one that does nothing when it comes late.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress

from trtllm_hpc.runtime.engine_cache.cache import Cache, Entry, Manifest, remove
from trtllm_hpc.runtime.engine_cache.seal import sync_folder


class Staging:
    """A folder in an entry where one build works, unseen until it is done.

    The step's output is a folder in it that the step itself may make, so that
    what the step leaves beside its output goes when that goes.

    Args:
        generation: number of the lock that the build holds.
        is_mine: looks whether it still does.
    """

    def __init__(self, entry: Entry, generation: int, is_mine: Callable[[], bool]) -> None:
        self._entry, self._generation, self._is_mine = entry, generation, is_mine
        self.folder = entry.folder / f"building.{generation}.{secrets.token_hex(8)}"
        self.output = self.folder / "output"
        self._identity: int | None = None

    def begin(self, cache: Cache, tell: Callable[[str], None]) -> bool:
        """Make the folder, and clear away what earlier builds have left.

        The folder comes before the look at the lock: who takes over after that look
        finds it and moves it away, and nothing can be published from it any more.

        Args:
            tell: called with what is wrong with a broken output, once that is removed.

        Returns:
            Whether there is something to build, and it is this build's to do.
        """
        self.folder.mkdir()
        self._identity = self.folder.stat().st_ino
        if not self._is_mine():
            return False
        self._entry.clear(before=self._generation)
        found = Manifest.read(self._entry.output)
        complaints = self._entry.missing()
        if complaints is None:
            return True
        # Whole: published at the last moment by the owner before.
        return bool(complaints) and self._removes_broken(cache, found, complaints[0], tell)

    def _removes_broken(
        self, cache: Cache, found: Manifest | None, complaint: str, tell: Callable[[str], None]
    ) -> bool:
        """Remove the output that ``found`` is the manifest of; ``False`` if it was gone or another one."""
        try:
            aside = cache.put_aside(self._entry.output)
        except FileNotFoundError:
            return False
        if Manifest.read(aside) != found:
            with suppress(OSError):  # who took over meanwhile may have published a third one
                aside.rename(self._entry.output)
            return False
        tell(complaint)
        remove(aside)
        self._entry.damage.unlink(missing_ok=True)
        return True

    def is_ours(self) -> bool:
        """Whether nobody has taken away the folder that was made here, if it was made at all.

        Who takes over moves it away in one piece; a process that wakes up late
        may make its path anew, with a part of the files only.
        """
        with suppress(FileNotFoundError):
            return self._identity in (None, self.folder.stat().st_ino)
        return self._identity is None

    def publish(self) -> bool:
        """Rename the sealed output to its final name; ``False`` if this build does not count any more.

        A finished output that is already there stays: rename(2) replaces no folder with something in it.
        """
        if not (self._is_mine() and self.is_ours()):
            return False
        try:
            self.output.rename(self._entry.output)
        except OSError:
            if not self._entry.output.is_dir():
                raise
            return False
        sync_folder(self._entry.folder)
        return True

    def remove(self) -> None:
        """Remove what is left of it."""
        remove(self.folder)
