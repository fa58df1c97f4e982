"""Lines of selected logs: filtered, the last ones only, or followed."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trtllm_hpc.logs.files import LogFile
from trtllm_hpc.logs.reading import GrowingLog, decode, lines_of, seek_last_lines

_PAUSE_S = 0.2


@dataclass(frozen=True)
class Filter:
    """Which lines of each log to show."""

    pattern: re.Pattern[str] | None = None
    last: int | None = None
    """Only the last N lines, counted after the pattern."""

    def matches(self, text: str) -> bool:
        """Return whether a line matches the pattern."""
        return self.pattern is None or self.pattern.search(text) is not None


def written_lines(log: LogFile, selected: Filter) -> Iterator[str]:
    """Yield the selected lines that a log has now; none if it does not exist."""
    try:
        file = log.path.open("rb")
    except OSError:
        return
    with file:
        if selected.last is not None and selected.pattern is None:
            seek_last_lines(file, selected.last)
        lines = filter(selected.matches, map(decode, lines_of(file)))
        yield from lines if selected.last is None else deque(lines, maxlen=selected.last)


def followed_lines(
    list_selected: Callable[[], list[LogFile]], selected: Filter
) -> Iterator[tuple[LogFile, str]]:
    """Yield selected lines of several logs as they are written, until every writer has ended.

    Args:
        list_selected: returns the logs to follow; called again and again, since ranks
            appear and end.
    """
    growing: dict[str, GrowingLog] = {}
    try:
        while True:
            logs = list_selected()
            over = bool(logs) and all(log.over for log in logs)
            for log in logs:
                source = growing.setdefault(log.name, GrowingLog(log.path, selected.last))
                for raw in source.rest() if over else source.new_lines():
                    if selected.matches(text := decode(raw)):
                        yield log, text
            if over:
                return
            time.sleep(_PAUSE_S)
    finally:
        for source in growing.values():
            source.close()
