"""What logs show of a failure: each log is read once, by several processes if there is much to read."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from trtllm_hpc.logs.causes.explain import (
    BEFORE,
    REPORTED,
    Finding,
    capitalised,
    findings,
    likeliest_first,
    of_lines,
    rank_of,
)
from trtllm_hpc.logs.causes.roots import FIRST_ERROR, SUSPECT
from trtllm_hpc.logs.causes.scan import Bounds, Match, Scanned, bounds_of, scan
from trtllm_hpc.logs.causes.table import Kind, forgotten_with_causes, words
from trtllm_hpc.logs.causes.table import causes as entries
from trtllm_hpc.logs.errors import is_harmless, suspicious
from trtllm_hpc.logs.prefixes import stripped
from trtllm_hpc.logs.reading import decode, lines_of, seek_last_lines, stat_of
from trtllm_hpc.logs.workers import in_order

LATE_LINES = 500
"""So near to a log's end a line may show why its writer ended; its writer survived what stands before."""
_ERROR, _NEXT = "error: ", "next: "
"""How programs of this package begin an error, and the advice in the line after it."""
_LATE_BYTES = 64 << 10  # the last lines are looked for in so much, or in the end that is searched
_ERROR_BYTES = 1 << 20
_MOST_KNOWN = 8192
_RARE, _LONGEST_REASON = 3, 300
"""A word is rare that so few lines have; so much of a line is shown as the reason of an error."""


@dataclass(frozen=True)
class LogFacts:
    """What one log shows."""

    first_error: str | None = None
    """The first line that is an error, with those in which it goes on; of a traceback it is the last line."""
    causes: tuple[Finding, ...] = ()
    """The entries of the table of causes in it, in the order of its lines."""
    own_error: Finding | None = None
    """The first error, if a program of this package has written it; without advice ``next`` is empty."""
    late_cause: Finding | None = None
    """The likeliest cause among the last lines that can have ended the writer."""
    end: str | None = None
    """The line that explains the end of the writer, if the log has such a line near its end."""
    candidates: tuple[Finding, ...] = ()
    """``causes``, and the other errors that no entry of the table knows, in the order of the lines."""
    survived: bool = False
    """Whether the log goes on for long after its last error, which may end no process."""
    unread_bytes: int = 0
    """Size of the middle that was not searched: of very long logs only beginning and end are."""


_Stamps = dict[Path, tuple[int, int]]
"""Size and time of logs when their reading began."""
_known: dict[Path, tuple[tuple[int, int], LogFacts]] = {}
"""Facts by path: `submit --wait` looks every few seconds."""
forgotten_with_causes(_known.clear)
_begun: list[tuple[_Stamps, Iterator[tuple[Path, LogFacts]]]] = []
"""What :func:`begin_reading` has begun; the results are not taken yet."""


def begin_reading(paths: Sequence[Path]) -> _Stamps:
    """Have other processes read logs that the caller is going to ask for, if the logs are large."""
    stamps = {path: stamp for path in paths if (stamp := _stamp(path)) is not None}
    new = [path for path, stamp in stamps.items() if _recall(path, stamp) is None]
    if new:  # prepares the search once, not in each process
        bounds = bounds_of([stamps[path][0] for path in new])
        _begun.append((stamps, in_order(partial(_read, bounds=bounds), new)))
    return stamps


def logs_facts(paths: Sequence[Path]) -> list[LogFacts]:
    """Return what each log shows; nothing for a log that cannot be read.

    However much the logs contain, this takes seconds: of long logs only beginning and end are searched.
    """
    if len(_known) > _MOST_KNOWN:
        _known.clear()
    _finish()
    stamps = begin_reading(paths)
    _finish()
    return [_recall(path, stamps.get(path)) or LogFacts() for path in paths]


def _finish() -> None:
    while _begun:
        stamps, results = _begun.pop()
        _known.update({path: (stamps[path], facts) for path, facts in results})


def _recall(path: Path, stamp: tuple[int, int] | None) -> LogFacts | None:
    known = _known.get(path)
    return known[1] if known is not None and known[0] == stamp else None


def _stamp(path: Path) -> tuple[int, int] | None:
    stat = stat_of(path)
    return None if stat is None else (stat.st_size, stat.st_mtime_ns)


def _read(path: Path, *, bounds: Bounds) -> Iterator[LogFacts]:
    from trtllm_hpc.logs.packed import opened  # imported here: few commands read logs

    try:
        with opened(path) as log:
            yield _facts(path, log, bounds)
    except OSError:
        return


def facts_of_stream(log: BinaryIO, name: str) -> LogFacts:
    """Return what a log shows that is open, and can be read from any place."""
    bounds = bounds_of([log.seek(0, os.SEEK_END)])
    log.seek(0)
    return _facts(Path(name), log, bounds)


def nearest_to_an_error(log: BinaryIO, *, only: bool) -> list[str]:
    """Return the last lines of a log that may speak of a failure; else the last ones, unless ``only``."""
    seek_last_lines(log, LATE_LINES, _LATE_BYTES)
    return suspicious(list(lines_of(log, _LATE_BYTES)), only=only)


def _facts(path: Path, log: BinaryIO, bounds: Bounds) -> LogFacts:
    scanned, late_bytes = scan(log, bounds), max(_LATE_BYTES, bounds.tail_bytes)
    reasons = [_reason(log, it) for it in scanned.matches]
    matches = [
        it if why is None else replace(it, groups=it.groups | {BEFORE: why.text})
        for it, why in zip(scanned.matches, reasons, strict=True)
    ]
    if matches and all(it.cause.kind is Kind.CONSEQUENCE for it in matches):
        why = next(filter(None, reasons), None) or _suspects(log, matches[0])
        matches = matches if why is None else [why, *scanned.matches]
    causes = tuple(findings(matches, str(path)))
    first = _first_error(scanned)
    if first is None and not causes:
        return LogFacts(unread_bytes=scanned.unread_bytes)
    own = _own_error(path, log, first) if first is not None and first.text.startswith(_ERROR) else None
    seek_last_lines(log, LATE_LINES, late_bytes)
    start = log.tell()
    found = zip(matches, causes, strict=True)
    late = [cause for match, cause in found if cause.ends_a_process and match.at >= start]
    late_cause = next(iter(likeliest_first(of_lines([late]))), None)
    log.seek(start)
    last = None if late_cause else _first_error(scan(log, replace(bounds, head_bytes=late_bytes)))
    candidates = tuple(findings(scanned.candidates, str(path)))
    return LogFacts(
        None if first is None else first.text,
        causes,
        own,
        late_cause,
        late_cause.match if late_cause else None if last is None else last.text,
        candidates,
        survived=scanned.survived,
        unread_bytes=scanned.unread_bytes,
    )


def _reason(log: BinaryIO, error: Match) -> Match | None:
    """Return a line before an error that may be its reason, where little is known of it.

    It says that something did not work, if only as a warning, and shares a rare word with the error.
    """
    if not (error.cause.first or error.cause.generic):
        return None
    start = max(0, error.at - _LATE_BYTES)
    log.seek(start)
    block = log.read(error.at - start)
    shared: Counter[int] = Counter()
    for word in set(words()["distinctive"].findall(error.text)):
        places = [it.start() for it in islice(re.finditer(re.escape(word.encode()), block), _RARE + 1)]
        if len(places) <= _RARE:
            shared.update({block.rfind(b"\n", 0, at) + 1 for at in places})
    for begin in sorted(shared, key=lambda begin: (-shared[begin], begin)):
        text = stripped(block[begin : block.find(b"\n", begin)]).text.strip()
        if words()["did_not"].search(text) and not is_harmless(text) and text not in error.text:
            line = error.line and error.line - block.count(b"\n", begin)
            said = text[:_LONGEST_REASON]
            return Match(entries()[FIRST_ERROR], {"text": said}, line, said, None, start + begin)
    return None


def _suspects(log: BinaryIO, consequence: Match) -> Match | None:
    """Return the lines that may speak of a failure before a line that only reports one."""
    start = max(0, consequence.at - _LATE_BYTES)
    log.seek(start)
    before = log.read(consequence.at - start).splitlines()[-LATE_LINES:]
    text = " / ".join(suspicious(before, 3, only=True))
    return Match(entries()[FIRST_ERROR], {"text": text}, None, text, None, start) if text else None


def _first_error(scanned: Scanned) -> Match | None:
    """Return the first error, before what only follows from another one or only may speak of a failure."""
    errors = [it for it in scanned.matches if it.cause.id != SUSPECT]
    return min(errors, key=lambda it: it.cause.kind is not Kind.ROOT, default=None)


def _own_error(path: Path, log: BinaryIO, first: Match) -> Finding:
    """Return the error of a program of this package with its advice, which stands in the line after it."""
    log.seek(first.at)
    log.readline(_ERROR_BYTES)
    advice = decode(log.readline(_ERROR_BYTES)).strip()
    text = first.text.removeprefix(_ERROR)
    following = advice.removeprefix(_NEXT) if advice.startswith(_NEXT) else ""
    place = (str(path), first.line, rank_of(str(path)), text)
    return Finding(REPORTED, Kind.ROOT, capitalised(text), following, *place)
