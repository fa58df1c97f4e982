"""Lines of selected logs: filtered, the last ones only, or followed as they are written."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from trtllm_hpc.logs.files import LogFile
from trtllm_hpc.logs.reading import (
    LONGEST_LINE_BYTES,
    blocks_of,
    decode,
    lines_of,
    seek_last_lines,
    stat_of,
    uncoloured,
)
from trtllm_hpc.logs.search import literals

CUT = "…".encode()
"""Ends a piece of a line whose rest follows, and begins the rest."""

_MOMENT_S = 1.0
"""A line without its end is shown when it has not grown for so long: a prompt, a progress bar."""
_COMPARED_BYTES = 256


class GrowingLog:
    """A log that is still being written, or does not exist yet.

    It is open only while it is read: a job may have more ranks than a process may have open files.
    """

    def __init__(self, path: Path, last: int | None = None) -> None:
        """Start with the last lines of a log, or with all."""
        self.path, self.last = path, last
        self._seen: os.stat_result | None = None
        self._position, self._before = 0, b""  # if what stands before it changes, the log was written anew
        self._pending, self._grown_at, self._continued = b"", 0.0, False

    def new_lines(self) -> Iterator[bytes]:
        """Yield the complete lines since the last call, and an incomplete one that no longer grows.

        A line longer than 64 KiB comes in pieces.
        """
        stat = stat_of(self.path)
        if self._seen is not None and (stat is None or not os.path.samestat(stat, self._seen)):
            yield from self._lines_of_moved(self._seen)
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

    def _lines_of_moved(self, seen: os.stat_result) -> Iterator[bytes]:
        """Yield what was written before the log was renamed; what was removed cannot be read."""
        try:
            paths = [Path(it.path) for it in os.scandir(self.path.parent) if it.inode() == seen.st_ino]
        except OSError:
            return
        for path in paths:
            stat = stat_of(path)
            if stat is not None and os.path.samestat(stat, seen) and not _same(stat, seen):
                yield from self._read(path, stat)

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
            else:
                log.seek(self._position - len(self._before))
                if log.read(len(self._before)) != self._before:  # a requeued job truncates its log
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

    def _remember(self, log: BinaryIO) -> None:
        self._position = log.tell()
        log.seek(max(0, self._position - _COMPARED_BYTES))
        self._before = log.read(self._position - log.tell())


def _same(one: os.stat_result, other: os.stat_result | None) -> bool:
    """Return whether a file has not changed; many writes in one tick of its clock change its size."""
    facts = ("st_ino", "st_size", "st_mtime_ns")
    return other is not None and all(getattr(one, it) == getattr(other, it) for it in facts)


_OTHER_FLAGS = re.IGNORECASE | re.VERBOSE
"""With these, a match need not have the texts of the expression."""
_AT_ONCE = 500
"""Lines of a log that are printed with one write."""
_PAUSE_S = 0.2
_PAUSE_PER_LOG_S = 0.001
"""Each look asks the file system about every log: at thousands of logs it must not be a burden."""


@dataclass(frozen=True)
class Filter:
    """Which lines of each log to show."""

    pattern: re.Pattern[str] | None = None
    last: int | None = None
    """Only the last N lines, counted after the pattern."""

    def matching(self, raw: bytes) -> str | None:
        """Return a line if it matches the pattern, as it is or without its colours."""
        text = decode(raw)
        if self.pattern is None or self.pattern.search(text):
            return text
        return text if b"\x1b" in raw and self.pattern.search(decode(uncoloured(raw))) else None

    def candidates(self, block: bytes) -> Iterator[bytes]:
        """Yield parts of a block, whole lines, which contain all those that match."""
        pattern = self.pattern
        texts = literals(pattern.pattern) if pattern and not pattern.flags & _OTHER_FLAGS else ()
        # What is not UTF-8 in a log is replaced when it is decoded.
        if not texts or b"\x1b" in block or any("\ufffd" in text for text in texts):
            yield block
            return
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
        places = {text: block.find(text) for text in encoded}
        while places := {text: at for text, at in places.items() if at >= 0}:
            first = min(places.values())
            end = block.find(b"\n", first) + 1 or len(block)
            yield block[block.rfind(b"\n", 0, first) + 1 : end]
            places = {text: at if at >= end else block.find(text, end) for text, at in places.items()}


def written_lines(logs: Sequence[LogFile], selected: Filter) -> Iterator[tuple[LogFile, list[str]]]:
    """Yield the selected lines that the logs have now, in the order of the logs, many at once."""
    for log in logs:
        lines = _written(log.path, selected)
        while some := list(islice(lines, _AT_ONCE)):
            yield log, some


def _written(path: Path, selected: Filter) -> Iterator[str]:
    """Yield the selected lines that a log has now; none if it does not exist."""
    try:
        file = path.open("rb")
    except OSError:
        return
    with file:
        if selected.last is not None and selected.pattern is None:
            seek_last_lines(file, selected.last)
        parts = (part for block in blocks_of(file, file.tell()) for part in selected.candidates(block))
        texts = (selected.matching(line) for part in parts for line in _lines_of(part))
        lines = (text for text in texts if text is not None)
        yield from lines if selected.last is None else deque(lines, maxlen=selected.last)


def _lines_of(part: bytes) -> Iterable[bytes]:
    """Return the lines of a part of a block, most often a single one."""
    if len(part) < LONGEST_LINE_BYTES and part.find(b"\n", 0, -1) < 0:
        return (part,)
    return lines_of(BytesIO(part))


def followed_lines(
    list_selected: Callable[[], list[LogFile]], selected: Filter
) -> Iterator[tuple[LogFile, list[str]]]:
    """Yield selected lines of several logs as they are written, until every writer has ended.

    The logs are listed again and again, since ranks appear and end.
    """
    growing: dict[str, GrowingLog] = {}
    while True:
        logs = list_selected()
        over = bool(logs) and all(log.over for log in logs)
        for log in logs:
            source = growing.setdefault(log.name, GrowingLog(log.path, selected.last))
            for raw in source.rest() if over else source.new_lines():
                text = selected.matching(raw)
                if text is not None:
                    yield log, [text]
        if over:
            return
        time.sleep(max(_PAUSE_S, _PAUSE_PER_LOG_S * len(logs)))
