"""What logs tell of a failure: each is read once, by several processes if it is much."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from trtllm_hpc.logs.causes.explain import Finding, findings
from trtllm_hpc.logs.causes.scan import prepare_scan, scan
from trtllm_hpc.logs.errors import first_error
from trtllm_hpc.logs.reading import lines_of
from trtllm_hpc.logs.workers import in_order

_HEAD_BYTES = 32 << 20
_TAIL_BYTES = 4 << 20
_MOST_KNOWN = 8192


@dataclass(frozen=True)
class LogFacts:
    """What one log tells."""

    first_error: str | None = None
    """The first line that looks like an error; of a traceback it is the last line."""
    causes: tuple[Finding, ...] = ()
    """The entries of the table of causes in it, in the order of its lines."""


@dataclass(frozen=True)
class _Reading:
    """Logs that are being read."""

    whole: bool
    stamps: dict[Path, tuple[int, int]]
    """Size and time of each when it began."""
    results: Iterator[tuple[Path, LogFacts]]


_known: dict[tuple[str, bool], tuple[tuple[int, int], LogFacts]] = {}
"""Facts by path, with the size and time of the log then: `submit --wait` asks every few seconds."""
_begun: list[_Reading] = []
"""By :func:`begin_reading`; the results are not taken yet."""


def begin_reading(paths: Sequence[Path]) -> None:
    """Have other processes read logs, if they are large, that the caller is going to ask for."""
    _begun.append(_begin(paths, whole=True))


def log_facts(path: Path) -> LogFacts:
    """Return what one log tells; nothing if it cannot be read."""
    return logs_facts([path])[0]


def logs_facts(paths: Sequence[Path], *, whole: bool = True) -> list[LogFacts]:
    """Return what each log tells; nothing for one that cannot be read.

    Unless ``whole``, only the first 32 MiB and the last 4 MiB of a log above 36 MiB are searched for an
    error, and nothing for causes.
    """
    if len(_known) > _MOST_KNOWN:
        _known.clear()
    while _begun:
        _finish(_begun.pop())
    reading = _begin(paths, whole=whole)
    _finish(reading)
    return [_recall(path, whole, reading.stamps.get(path)) or LogFacts() for path in paths]


def _begin(paths: Sequence[Path], *, whole: bool) -> _Reading:
    stamps = {path: stamp for path in paths if (stamp := _stamp(path)) is not None}
    new = [path for path, stamp in stamps.items() if _recall(path, whole, stamp) is None]
    if new:
        prepare_scan(sum(stamps[path][0] for path in new))  # once, not in each process
    return _Reading(whole, stamps, in_order(partial(_read, whole=whole), new))


def _finish(reading: _Reading) -> None:
    for path, facts in reading.results:
        _known[str(path), reading.whole] = reading.stamps[path], facts


def _recall(path: Path, whole: bool, stamp: tuple[int, int] | None) -> LogFacts | None:
    for wider in (True,) if whole else (True, False):
        known = _known.get((str(path), wider))
        if known is not None and known[0] == stamp:
            return known[1]
    return None


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


def _read(path: Path, *, whole: bool) -> Iterator[LogFacts]:
    try:
        with path.open("rb") as log:
            size = os.fstat(log.fileno()).st_size
            if whole or size <= _HEAD_BYTES + _TAIL_BYTES:
                scanned = scan(log)
                error = _error(log, 0, scanned.error_at)
                yield LogFacts(error, tuple(findings(scanned, str(path))))
                return
            error = _error(log, 0, scan(log, _HEAD_BYTES).error_at)
            if error is None:
                tail = log.seek(size - _TAIL_BYTES)
                error = _error(log, tail, scan(log, _TAIL_BYTES).error_at)
            yield LogFacts(error)
    except OSError:
        return


def _error(log: BinaryIO, start: int, at: int | None) -> str | None:
    """Return the error that begins ``at`` bytes after ``start``."""
    if at is None:
        return None
    log.seek(start + at)
    return first_error(lines_of(log, _HEAD_BYTES))
