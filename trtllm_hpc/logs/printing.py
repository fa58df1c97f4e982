"""Lines of selected logs: filtered, the last ones only, or followed as they are written."""

from __future__ import annotations

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
        self._seen: tuple[int, int, int] | None = None
        self._position, self._begun, self._grown_at = 0, b"", 0.0

    def new_lines(self, *, is_over: bool = False) -> Iterator[bytes]:
        """Yield the lines written since the last call; of a log that was written anew, or replaced, all.

        A line without its end is yielded when it no longer grows, or if nothing more will be written
        (``is_over``). A line longer than 64 KiB comes in pieces.
        """
        stat, seen = reading.stat_of(self.path), self._seen
        state = None if stat is None else (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if state is not None and state != seen:
            with suppress(OSError), self.path.open("rb") as log:
                if seen is None and self.last is not None:
                    reading.seek_last_lines(log, self.last)
                elif seen is not None and state[0] == seen[0] and state[1] >= self._position:
                    log.seek(self._position)
                elif self._begun:
                    yield self._taken()
                self._seen = state
                for line in reading.lines_of(log):
                    self._begun, self._grown_at = self._begun + line, time.monotonic()
                    if line.endswith(b"\n") or len(line) == reading.LONGEST_LINE_BYTES:
                        yield self._taken()
                self._position = log.tell()
        if self._begun and (is_over or time.monotonic() - self._grown_at > _MOMENT_S):
            yield self._taken()

    def _taken(self) -> bytes:
        line, self._begun = self._begun, b""
        return line
