"""Printing chosen logs: filtered, cut to the last lines, followed."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trtllm_hpc.logs.files import LogFile
from trtllm_hpc.logs.reading import GrowingLog, lines_of, seek_last_lines
from trtllm_hpc.logs.text import decode

_PAUSE_S = 0.2


@dataclass(frozen=True)
class Filter:
    """What to show of each log."""

    pattern: re.Pattern[str] | None = None
    last: int | None = None
    """Only that many lines, counted after the pattern."""

    def matches(self, text: str) -> bool:
        """Whether a line is wanted."""
        return self.pattern is None or self.pattern.search(text) is not None


def written_lines(log: LogFile, wanted: Filter) -> Iterator[str]:
    """The wanted lines that a log holds now; none if it is not there."""
    try:
        file = log.path.open("rb")
    except OSError:
        return
    with file:
        if wanted.last is not None and wanted.pattern is None:
            seek_last_lines(file, wanted.last)
        lines = filter(wanted.matches, map(decode, lines_of(file)))
        yield from lines if wanted.last is None else deque(lines, maxlen=wanted.last)


def followed_lines(choose: Callable[[], list[LogFile]], wanted: Filter) -> Iterator[tuple[LogFile, str]]:
    """Wanted lines of the chosen logs as they come, until every writer has ended.

    Args:
        choose: the logs to follow; asked again and again, since ranks appear
            and end.
    """
    growing: dict[str, GrowingLog] = {}
    try:
        while True:
            logs = choose()
            over = bool(logs) and all(log.over for log in logs)
            for log in logs:
                source = growing.setdefault(log.name, GrowingLog(log.path, wanted.last))
                for raw in source.rest() if over else source.new_lines():
                    if wanted.matches(text := decode(raw)):
                        yield log, text
            if over:
                return
            time.sleep(_PAUSE_S)
    finally:
        for source in growing.values():
            source.close()
