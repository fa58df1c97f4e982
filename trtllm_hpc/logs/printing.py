"""Lines of selected logs: filtered, the last ones only, or followed as they are written."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from trtllm_hpc.logs import reading
from trtllm_hpc.logs.files import LogFile
from trtllm_hpc.logs.search import literals, printed

CUT = "…".encode()
"""Ends a piece of a line whose rest follows, and begins the rest."""
_COMPARED_BYTES = 256
_MOMENT_S = 1.0  # a line without its end is shown when it has not grown for so long: a prompt, a progress bar
_OTHER_FLAGS = re.IGNORECASE | re.VERBOSE  # with these, a match need not have the texts of the expression
_AT_ONCE = 500  # lines of a log that are printed with one write
_PAUSE_S, _PAUSE_PER_LOG_S = 0.2, 0.001
"""Each look asks the file system about every log: at thousands of logs it must not be a burden."""


@dataclass(frozen=True)
class Filter:
    """Which lines of each log to show."""

    pattern: re.Pattern[str] | None = None
    last: int | None = None
    """Only the last N lines, counted after the pattern."""

    def matching(self, lines: list[str]) -> list[str]:
        """Return the lines that match the pattern, as they are or without their colours."""
        if self.pattern is None:
            return lines
        search = self.pattern.search
        return [line for line in lines if search(line) or ("\x1b" in line and search(_plain(line)))]

    @property
    def texts(self) -> tuple[str, ...]:
        """Texts of which each line that matches has one; empty if none is known."""
        if self.pattern is None or self.pattern.flags & _OTHER_FLAGS:
            return ()
        texts = literals(self.pattern.pattern)
        # Colours may stand within a text; what is not UTF-8 in a log is replaced when it is decoded.
        return (*texts, "\x1b") if texts and not any("\ufffd" in text for text in texts) else ()


def _plain(line: str) -> str:
    return reading.decode(reading.uncoloured(line.encode()))


def written_lines(logs: Sequence[LogFile], selected: Filter) -> Iterator[tuple[LogFile, list[str]]]:
    """Yield the selected lines that the logs have now, in the order of the logs, many at once."""
    by_path = {log.path: log for log in logs}
    for path, pieces in printed(list(by_path), selected.texts, in_order=True):
        blocks = _written(path, selected) if pieces is None else _joined(pieces)
        found = (line for block in blocks for line in selected.matching(reading.decoded(block)))
        lines = found if selected.last is None else iter(deque(found, maxlen=selected.last))
        while some := list(islice(lines, _AT_ONCE)):
            yield by_path[path], some


def _written(path: Path, selected: Filter) -> Iterator[bytes]:
    """Yield the blocks of a log that may have selected lines; none if it does not exist."""
    with suppress(OSError), path.open("rb") as log:
        if selected.last is not None and selected.pattern is None:
            reading.seek_last_lines(log, selected.last)
        yield from reading.blocks_of(log, log.tell())


def _joined(pieces: Iterator[tuple[bytes, bool]]) -> Iterator[bytes]:
    while block := b"".join(piece for piece, _ in islice(pieces, _AT_ONCE)):
        yield block


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
            lines = map(reading.decode, source.new_lines(is_over=over))
            if found := selected.matching(list(lines)):
                yield log, found
        if over:
            return
        time.sleep(max(_PAUSE_S, _PAUSE_PER_LOG_S * len(logs)))


class GrowingLog:
    """A log that is still being written, or does not exist yet.

    It is open only while it is read: a job may have more ranks than a process may have open files.
    """

    def __init__(self, path: Path, last: int | None = None) -> None:
        """Start with the last lines of a log, or with all."""
        self.path, self.last = path, last
        self._seen: os.stat_result | None = None
        self._position, self._before = 0, b""  # if what stands before it changes, the log was written anew
        self._begun, self._grown_at, self._continues = b"", 0.0, False

    def new_lines(self, *, is_over: bool = False) -> Iterator[bytes]:
        """Yield the lines written since the last call, also those before the log was renamed or written anew.

        A line without its end is yielded when it no longer grows, or if nothing more will be written
        (``is_over``). A line longer than 64 KiB comes in pieces.
        """
        stat, seen = reading.stat_of(self.path), self._seen
        if seen is not None and (stat is None or not os.path.samestat(stat, seen)):
            with suppress(OSError):  # a removed log is gone
                for entry in os.scandir(self.path.parent):
                    if entry.inode() == seen.st_ino:
                        yield from self._read(Path(entry.path))
            if stat is not None:
                yield from self._begin_again()
        yield from self._read(self.path)
        if self._begun and (is_over or time.monotonic() - self._grown_at > _MOMENT_S):
            yield self._piece(continues=not is_over)

    def _read(self, path: Path) -> Iterator[bytes]:
        stat, seen = reading.stat_of(path), self._seen
        if stat is None or (seen is not None and _state(stat) == _state(seen)):
            return
        with suppress(OSError), path.open("rb") as log:
            if seen is None and self.last is not None:
                reading.seek_last_lines(log, self.last)
                self._position = log.tell()
            else:
                log.seek(self._position - len(self._before))
                if log.read(len(self._before)) != self._before:  # a requeued job truncates its log
                    yield from self._begin_again()
                log.seek(self._position)
            self._seen = stat
            for line in reading.lines_of(log):
                self._begun, self._grown_at = self._begun + line, time.monotonic()
                if self._continues and not self._begun.strip(b"\r\n"):
                    self._begun, self._continues = b"", False  # all of the line has been shown
                elif line.endswith(b"\n"):
                    yield self._piece(continues=False)
                elif len(self._begun) >= reading.LONGEST_LINE_BYTES:
                    yield self._piece(continues=True) + CUT
            self._position = log.tell()
            log.seek(max(0, self._position - _COMPARED_BYTES))
            self._before = log.read(self._position - log.tell())

    def _begin_again(self) -> Iterator[bytes]:
        """Yield an incomplete line, and go on with a new log from its start."""
        if self._begun:
            yield self._piece(continues=False)
        self._position, self._before, self._continues = 0, b"", False

    def _piece(self, *, continues: bool) -> bytes:
        """Return a line, or a piece of it, with a mark if it is not the first one."""
        piece = (CUT if self._continues else b"") + self._begun
        self._begun, self._continues = b"", continues
        return piece


def _state(stat: os.stat_result) -> tuple[int, int, int]:
    """Return by what a file has changed; many writes in one tick of its clock change its size."""
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
