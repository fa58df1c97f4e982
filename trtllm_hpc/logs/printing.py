"""Lines of selected logs: filtered, the last ones only, or followed as they are written."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from trtllm_hpc.logs import reading
from trtllm_hpc.logs.files import LogFile
from trtllm_hpc.logs.reading import LONGEST_LINE_BYTES, stat_of
from trtllm_hpc.logs.search import by_ripgrep, literals

CUT = "…".encode()
"""Ends a piece of a line whose rest follows, and begins the rest."""
_MOMENT_S = 1.0  # a line without its end is shown when it has not grown for so long: a prompt, a progress bar
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
        stat, seen = stat_of(self.path), self._seen
        if seen is not None and (stat is None or not os.path.samestat(stat, seen)):
            with suppress(OSError):  # what was written before the log was renamed; a removed one is gone
                for entry in os.scandir(self.path.parent):
                    if entry.inode() == seen.st_ino:
                        yield from self._read(Path(entry.path))
            if stat is not None:
                yield from self._begin_again()
        yield from self._read(self.path)
        if self._pending and time.monotonic() - self._grown_at > _MOMENT_S:
            yield self._piece(self._pending, goes_on=True)

    def rest(self) -> Iterator[bytes]:
        """Yield what is left when nothing more will be written, including a last line without its end."""
        yield from self.new_lines()
        if self._pending:
            yield self._piece(self._pending)

    def _begin_again(self) -> Iterator[bytes]:
        """Yield an incomplete line, and go on with a new log from its start."""
        if self._pending:
            yield self._piece(self._pending)
        self._position, self._before, self._continued = 0, b"", False

    def _read(self, path: Path) -> Iterator[bytes]:
        stat = stat_of(path)
        if stat is None or _state(stat) == _state(self._seen):
            return
        with suppress(OSError), path.open("rb") as log:
            if self._seen is None and self.last is not None:
                reading.seek_last_lines(log, self.last)
                self._remember(log.tell(), log)
            log.seek(self._position - len(self._before))
            if log.read(len(self._before)) != self._before:  # a requeued job truncates its log
                yield from self._begin_again()
            self._seen = stat
            log.seek(self._position)
            for line in reading.lines_of(log):
                self._grown_at = time.monotonic()
                self._pending = line = self._pending + line
                if self._continued and not line.strip(b"\r\n"):
                    self._pending, self._continued = b"", False  # all of the line has been shown
                elif line.endswith(b"\n"):
                    yield self._piece(line)
                elif len(line) >= LONGEST_LINE_BYTES:
                    yield self._piece(line, goes_on=True) + CUT
            self._remember(log.tell(), log)

    def _piece(self, line: bytes, *, goes_on: bool = False) -> bytes:
        """Return a line, or a piece of it, with a mark if it is not the first one."""
        begins = CUT if self._continued else b""
        self._pending, self._continued = b"", goes_on
        return begins + line

    def _remember(self, position: int, log: BinaryIO) -> None:
        log.seek(max(0, position - _COMPARED_BYTES))
        self._position, self._before = position, log.read(position - log.tell())


def _state(stat: os.stat_result | None) -> tuple[int, int, int] | None:
    """Return by what a file has changed; many writes in one tick of its clock change its size."""
    return None if stat is None else (stat.st_ino, stat.st_size, stat.st_mtime_ns)


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
    for path, printed in by_ripgrep(list(by_path), selected.texts, "--threads=1"):
        lines = _selected(_written(path, selected) if printed is None else printed, selected)
        while some := list(islice(lines, _AT_ONCE)):
            yield by_path[path], some


def _written(path: Path, selected: Filter) -> Iterator[bytes]:
    """Yield the blocks of a log that may have selected lines; none if it does not exist."""
    with suppress(OSError), path.open("rb") as log:
        if selected.last is not None and selected.pattern is None:
            reading.seek_last_lines(log, selected.last)
        yield from reading.blocks_of(log, log.tell())


def _selected(blocks: Iterable[bytes], selected: Filter) -> Iterator[str]:
    lines = (line for block in blocks for line in selected.matching(reading.decoded(block)))
    return lines if selected.last is None else iter(deque(lines, maxlen=selected.last))


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
            lines = map(reading.decode, source.rest() if over else source.new_lines())
            if found := selected.matching(list(lines)):
                yield log, found
        if over:
            return
        time.sleep(max(_PAUSE_S, _PAUSE_PER_LOG_S * len(logs)))
