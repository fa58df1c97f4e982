"""Lines of selected logs: filtered, the last ones only, or followed."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path

from trtllm_hpc.logs.anchors import anchors_of
from trtllm_hpc.logs.files import LogFile
from trtllm_hpc.logs.growing import GrowingLog
from trtllm_hpc.logs.reading import (
    LONGEST_LINE_BYTES,
    blocks_of,
    decode,
    lines_of,
    seek_last_lines,
    uncoloured,
)
from trtllm_hpc.logs.workers import in_order

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
        anchors = () if self.pattern is None else anchors_of(self.pattern)
        searched = block
        if self.pattern is not None and self.pattern.flags & re.IGNORECASE:
            # Some letters beyond ASCII count as one of its letters.
            anchors = anchors if block.isascii() else ()
            searched = block.lower()
        if not anchors:
            yield block
        elif (plain := uncoloured(searched)) is not searched:
            if any(text in one for one in (plain, searched) for text in anchors):
                yield block
        else:
            yield from _lines_with(anchors, searched, block)


def _lines_with(texts: Sequence[bytes], searched: bytes, block: bytes) -> Iterator[bytes]:
    """Yield the lines of a block in whose place ``searched`` has one of the texts."""
    if len(texts) == 1:  # most expressions; a dictionary would take half of the time
        at = searched.find(texts[0])
        while at >= 0:
            end = searched.find(b"\n", at) + 1 or len(searched)
            yield block[searched.rfind(b"\n", 0, at) + 1 : end]
            at = searched.find(texts[0], end)
        return
    places = {text: searched.find(text) for text in texts}
    while places := {text: at for text, at in places.items() if at >= 0}:
        first = min(places.values())
        end = searched.find(b"\n", first) + 1 or len(searched)
        yield block[searched.rfind(b"\n", 0, first) + 1 : end]
        places = {text: at if at >= end else searched.find(text, end) for text, at in places.items()}


def written_lines(
    logs: Sequence[LogFile], selected: Filter, at_once: int
) -> Iterator[tuple[LogFile, list[str]]]:
    """Yield the selected lines that the logs have now, in the order of the logs, so many at once."""

    def some_of(path: Path) -> Iterator[list[str]]:
        lines = _written(path, selected)
        while some := list(islice(lines, at_once)):
            yield some

    by_path = {log.path: log for log in logs}
    if selected.pattern is None:  # nothing to compute that is worth a process
        yield from ((log, some) for log in logs for some in some_of(log.path))
    else:
        yield from ((by_path[path], some) for path, some in in_order(some_of, list(by_path)))


def _written(path: Path, selected: Filter) -> Iterator[str]:
    """Yield the selected lines that a log has now; none if it does not exist."""
    try:
        file = path.open("rb")
    except OSError:
        return
    with file:
        if selected.last is not None and selected.pattern is None:
            seek_last_lines(file, selected.last)
        parts = (part for block in blocks_of(file) for part in selected.candidates(block))
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
