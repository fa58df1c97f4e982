"""Reading logs as they grow, by any number of ranks, whatever becomes of the files meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from trtllm_hpc.logs.reading import LONGEST_LINE_BYTES, lines_of, seek_last_lines

CUT = "…".encode()
"""Ends a piece of a line whose rest follows, and begins the rest."""

_MOMENT_S = 1.0
"""A line without its end is shown when it has not grown for so long: a prompt, a progress bar."""
_COMPARED_BYTES = 256


@dataclass
class GrowingLog:
    """A log that is still being written, or does not exist yet.

    It is open only while it is read: a job may have more ranks than a process may have open files.
    """

    path: Path
    last: int | None = None
    """Start with the last N lines; ``None``: with all."""
    _seen: os.stat_result | None = field(default=None, init=False)
    _position: int = field(default=0, init=False)
    _before: bytes = field(default=b"", init=False)
    """What stands before the position: if that changes, the log has been written anew."""
    _pending: bytes = field(default=b"", init=False)
    _grown_at: float = field(default=0.0, init=False)
    _continued: bool = field(default=False, init=False)

    def new_lines(self) -> Iterator[bytes]:
        """Yield the complete lines since the last call, and an incomplete one that no longer grows.

        A line longer than 64 KiB comes in pieces.
        """
        stat = _stat(self.path)
        if self._seen is not None and (stat is None or not os.path.samestat(stat, self._seen)):
            yield from self._lines_of_moved()
            if stat is not None:
                yield from self._begin_again()
        if stat is not None and not _same(stat, self._seen):
            yield from self._read(self.path, stat)
        if self._pending and time.monotonic() - self._grown_at > _MOMENT_S:
            yield self._piece(self._pending, cut=False, goes_on=True)

    def rest(self) -> Iterator[bytes]:
        """Yield what is left when nothing more will be written, including a last line without its end."""
        yield from self.new_lines()
        if self._pending:
            yield self._piece(self._pending)

    def _lines_of_moved(self) -> Iterator[bytes]:
        """Yield what was written before the log was renamed; what was removed cannot be read."""
        assert self._seen is not None
        try:
            entries = [entry for entry in os.scandir(self.path.parent) if entry.inode() == self._seen.st_ino]
        except OSError:
            return
        for entry in entries:
            stat = _stat(Path(entry.path))
            if stat is not None and os.path.samestat(stat, self._seen) and not _same(stat, self._seen):
                yield from self._read(Path(entry.path), stat)

    def _begin_again(self) -> Iterator[bytes]:
        """Yield an incomplete line, and go on with a new log from its start."""
        if self._pending:
            yield self._piece(self._pending)
        self._position, self._before, self._continued = 0, b"", False

    def _read(self, path: Path, stat: os.stat_result) -> Iterator[bytes]:
        try:
            log = path.open("rb")
        except OSError:
            return
        with log:
            if self._seen is None and self.last is not None:
                seek_last_lines(log, self.last)
                self._remember(log)
            elif not self._goes_on(log):  # a requeued job truncates its log
                yield from self._begin_again()
            self._seen = stat
            log.seek(self._position)
            for line in lines_of(log):
                self._grown_at = time.monotonic()
                line = self._pending + line
                self._pending = line
                if self._continued and not line.strip(b"\r\n"):
                    self._pending, self._continued = b"", False  # all of the line has been shown
                elif line.endswith(b"\n"):
                    yield self._piece(line)
                elif len(line) >= LONGEST_LINE_BYTES:
                    yield self._piece(line, cut=True, goes_on=True)
            self._remember(log)

    def _piece(self, line: bytes, *, cut: bool = False, goes_on: bool = False) -> bytes:
        """Return a line, or a piece of it, with marks where it is cut."""
        begins = CUT if self._continued else b""
        self._pending, self._continued = b"", goes_on
        return begins + line + (CUT if cut else b"")

    def _goes_on(self, log: BinaryIO) -> bool:
        """Return whether what has been read is still there."""
        log.seek(self._position - len(self._before))
        return log.read(len(self._before)) == self._before

    def _remember(self, log: BinaryIO) -> None:
        self._position = log.tell()
        log.seek(max(0, self._position - _COMPARED_BYTES))
        self._before = log.read(self._position - log.tell())


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _same(stat: os.stat_result, seen: os.stat_result | None) -> bool:
    """Return whether a file has not changed; many writes in one tick of its clock change its size."""
    return seen is not None and (stat.st_ino, stat.st_size, stat.st_mtime_ns) == (
        seen.st_ino,
        seen.st_size,
        seen.st_mtime_ns,
    )
