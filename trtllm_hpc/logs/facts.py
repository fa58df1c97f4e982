"""What logs show of a failure: each log is read once, by several processes if there is much to read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from trtllm_hpc.logs.causes.explain import (
    REPORTED,
    Finding,
    capitalised,
    findings,
    likeliest_first,
    of_lines,
    rank_of,
)
from trtllm_hpc.logs.causes.scan import Scanned, prepare_scan, scan
from trtllm_hpc.logs.causes.table import Kind
from trtllm_hpc.logs.errors import first_error
from trtllm_hpc.logs.reading import count_lines, decode, lines_of, seek_last_lines, stat_of
from trtllm_hpc.logs.workers import in_order

LATE_LINES = 500
"""So near to a log's end a line may show why its writer ended; its writer survived what stands before."""
_ERROR, _NEXT = "error: ", "next: "
"""How programs of this package begin an error, and the advice in the line after it."""
_HEAD_BYTES = 32 << 20
_TAIL_BYTES = 4 << 20
_MOST_KNOWN = 8192


@dataclass(frozen=True)
class LogFacts:
    """What one log shows."""

    first_error: str | None = None
    """The first line that looks like an error; of a traceback it is the last line."""
    causes: tuple[Finding, ...] = ()
    """The entries of the table of causes in it, in the order of its lines."""
    own_error: Finding | None = None
    """The first error, if a program of this package has written it; without advice ``next`` is empty."""
    late_cause: Finding | None = None
    """The likeliest cause among the last lines that can have ended the writer."""
    late_error: str | None = None
    """The first error among the last lines."""

    @property
    def end(self) -> str | None:
        """The line that explains the end of the writer, if the log has such a line near its end."""
        return self.late_error if self.late_cause is None else self.late_cause.match


_Stamps = dict[Path, tuple[int, int]]
"""Size and time of logs when their reading began."""
_known: dict[tuple[Path, bool], tuple[tuple[int, int], LogFacts]] = {}
"""Facts by path and whether all of the log was read: `submit --wait` looks every few seconds."""
_begun: list[tuple[bool, _Stamps, Iterator[tuple[Path, LogFacts]]]] = []
"""What :func:`begin_reading` has begun; the results are not taken yet."""


def begin_reading(paths: Sequence[Path], *, whole: bool = True) -> _Stamps:
    """Have other processes read logs that the caller is going to ask for, if the logs are large."""
    stamps = {path: stamp for path in paths if (stamp := _stamp(path)) is not None}
    new = [path for path, stamp in stamps.items() if _recall(path, whole, stamp) is None]
    if new:
        prepare_scan(sum(stamps[path][0] for path in new))  # once, not in each process
    _begun.append((whole, stamps, in_order(partial(_read, whole=whole), new)))
    return stamps


def logs_facts(paths: Sequence[Path], *, whole: bool = True) -> list[LogFacts]:
    """Return what each log shows; nothing for a log that cannot be read.

    Unless ``whole``, only the first 32 MiB and the last 4 MiB of a log above 36 MiB are searched for an
    error, and nothing for causes.
    """
    if len(_known) > _MOST_KNOWN:
        _known.clear()
    _finish()
    stamps = begin_reading(paths, whole=whole)
    _finish()
    return [_recall(path, whole, stamps.get(path)) or LogFacts() for path in paths]


def _finish() -> None:
    while _begun:
        whole, stamps, results = _begun.pop()
        _known.update({(path, whole): (stamps[path], facts) for path, facts in results})


def _recall(path: Path, whole: bool, stamp: tuple[int, int] | None) -> LogFacts | None:
    for wider in (True,) if whole else (True, False):
        known = _known.get((path, wider))
        if known is not None and known[0] == stamp:
            return known[1]
    return None


def _stamp(path: Path) -> tuple[int, int] | None:
    stat = stat_of(path)
    return None if stat is None else (stat.st_size, stat.st_mtime_ns)


def _read(path: Path, *, whole: bool) -> Iterator[LogFacts]:
    try:
        with path.open("rb") as log:
            size = os.fstat(log.fileno()).st_size
            if whole or size <= _HEAD_BYTES + _TAIL_BYTES:
                yield _facts(path, log, scan(log))
                return
            error = _error(log, 0, scan(log, _HEAD_BYTES).error_at)
            if error is None:
                tail = log.seek(size - _TAIL_BYTES)
                error = _error(log, tail, scan(log, _TAIL_BYTES).error_at)
            yield LogFacts(error)
    except OSError:
        return


def _facts(path: Path, log: BinaryIO, scanned: Scanned) -> LogFacts:
    causes = tuple(findings(scanned, str(path)))
    error = _error(log, 0, scanned.error_at)
    own = None if error is None or not error.startswith(_ERROR) else _own_error(path, log, scanned, error)
    if error is None and not causes:
        return LogFacts()
    seek_last_lines(log, LATE_LINES)
    start = log.tell()
    late_error = first_error(lines_of(log))
    log.seek(0)
    survived = count_lines(log, start) if causes else 0
    late = [cause for cause in causes if cause.ends_a_process and (cause.line or 0) > survived]
    return LogFacts(error, causes, own, next(iter(likeliest_first(of_lines([late]))), None), late_error)


def _error(log: BinaryIO, start: int, at: int | None) -> str | None:
    """Return the error that begins ``at`` bytes after ``start``."""
    if at is None:
        return None
    log.seek(start + at)
    return first_error(lines_of(log, _HEAD_BYTES))


def _own_error(path: Path, log: BinaryIO, scanned: Scanned, line: str) -> Finding:
    """Return the error of a program of this package with its advice; the log stands after its line."""
    advice = decode(log.readline(_HEAD_BYTES)).strip()
    log.seek(0)
    number = 1 + count_lines(log, scanned.error_at or 0)
    text = line.removeprefix(_ERROR)
    following = advice.removeprefix(_NEXT) if advice.startswith(_NEXT) else ""
    return Finding(
        REPORTED, Kind.ROOT, capitalised(text), following, str(path), number, rank_of(str(path)), text
    )
