"""Lines of selected logs: filtered, the last ones only, or followed."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO

from trtllm_hpc.logs.anchors import anchors_of
from trtllm_hpc.logs.files import LogFile
from trtllm_hpc.logs.growing import GrowingLog
from trtllm_hpc.logs.reading import blocks_of, decode, lines_of, seek_last_lines, uncoloured

_PAUSE_S = 0.2
_PAUSE_PER_LOG_S = 0.001
"""Each look asks the file system about every log: at thousands of logs it must not be a burden."""


@dataclass(frozen=True)
class Filter:
    """Which lines of each log to show."""

    pattern: re.Pattern[str] | None = None
    last: int | None = None
    """Only the last N lines, counted after the pattern."""

    def matches(self, raw: bytes) -> bool:
        """Return whether a line matches the pattern, as it is or without its colours."""
        if self.pattern is None or self.pattern.search(decode(raw)):
            return True
        return b"\x1b" in raw and self.pattern.search(decode(uncoloured(raw))) is not None

    @cached_property
    def _anchors(self) -> tuple[bytes, ...]:
        return () if self.pattern is None else anchors_of(self.pattern)

    def candidates(self, block: bytes) -> Iterator[bytes]:
        """Yield parts of a block, whole lines, which contain all those that match."""
        if not self._anchors:
            yield block
        elif (plain := uncoloured(block)) is not block:
            if any(text in one for one in (plain, block) for text in self._anchors):
                yield block
        else:
            yield from self._lines_with_anchor(block)

    def _lines_with_anchor(self, block: bytes) -> Iterator[bytes]:
        places = {text: block.find(text) for text in self._anchors}
        while places := {text: at for text, at in places.items() if at >= 0}:
            first = min(places.values())
            end = block.find(b"\n", first) + 1 or len(block)
            yield block[block.rfind(b"\n", 0, first) + 1 : end]
            places = {text: at if at >= end else block.find(text, end) for text, at in places.items()}


def written_lines(log: LogFile, selected: Filter) -> Iterator[str]:
    """Yield the selected lines that a log has now; none if it does not exist."""
    try:
        file = log.path.open("rb")
    except OSError:
        return
    with file:
        if selected.last is not None and selected.pattern is None:
            seek_last_lines(file, selected.last)
        parts = (part for block in blocks_of(file) for part in selected.candidates(block))
        lines = (decode(line) for part in parts for line in lines_of(BytesIO(part)) if selected.matches(line))
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
    while True:
        logs = list_selected()
        over = bool(logs) and all(log.over for log in logs)
        for log in logs:
            source = growing.setdefault(log.name, GrowingLog(log.path, selected.last))
            for raw in source.rest() if over else source.new_lines():
                if selected.matches(raw):
                    yield log, decode(raw)
        if over:
            return
        time.sleep(max(_PAUSE_S, _PAUSE_PER_LOG_S * len(logs)))
