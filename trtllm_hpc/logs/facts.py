"""Facts that logs show of a failure: a first pass reads all of a log, the exact look only around its hits."""

from __future__ import annotations

import heapq
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import BinaryIO

from trtllm_hpc.logs import reading
from trtllm_hpc.logs.causes import explain
from trtllm_hpc.logs.causes import lines as kinds
from trtllm_hpc.logs.causes.explain import Finding, SuspiciousLine
from trtllm_hpc.logs.causes.lines import Match, SuspectLine
from trtllm_hpc.logs.causes.table import READY, Cause, Degree, Kind, Tables, causes, compiled, tables, words
from trtllm_hpc.logs.search import Hit, hits, hits_in

LATE_LINES, _LATE_BYTES = 500, 64 << 10
"""So near to a log's end a line may show why its writer ended; its writer survived what stands before."""
_ERROR, _NEXT, _ERROR_BYTES = "error: ", "next: ", 1 << 20
"""Words with which programs of this package begin an error, and the advice in the line after it."""
_MASK = bytes.maketrans(b"0123456789abcdef", b"1" * 16)
"""Makes numbers and hexadecimal identifiers of the same length equal."""
_MOST_KNOWN, _MOST_SHAPES, _LONGEST_SHAPE = 8192, 50_000, 4096
_SHOWN, _SHOWN_ERROR = 300, 600  # characters that are shown of a line, and of an error with what follows
_BEFORE_BYTES, _BLOCK_BYTES, _AFTER_BYTES = 32 << 10, 384 << 10, 96 << 10
"""Bytes that are read around a hit for the exact look: the least before it, all, and the least after it."""
_FIRST, _LAST, _CLUSTER_BYTES = 50, 50, 16 << 10
"""So many errors are kept of a log's beginning and end; so near to the last one is the last cluster."""
_SURVIVED, _SURVIVED_OTHERWISE, _SURVIVED_PRECISE = 12, 30, 150
"""Lines after an error that shells survive, after another one, and after an exception or a precise entry."""
_MAYBE_WELL, _MOST_SUSPICIOUS = 3, 5  # how suspicious a line is of the kind that healthy runs have


@dataclass(frozen=True)
class LogFacts:
    """Facts that one log shows."""

    first_error: str | None = None
    """The first line that is an error, with those in which it goes on; of a traceback it is the last line."""
    causes: tuple[Finding, ...] = ()
    """The entries of the table of causes that the log shows, in the order of its lines."""
    own_error: Finding | None = None
    """The first error, if a program of this package has written it; without advice ``next`` is empty."""
    late_cause: Finding | None = None
    """The likeliest cause among the last lines that can have ended the writer."""
    end: str | None = None
    """The line that explains the end of the writer, if the log has such a line near its end."""
    survived: bool = False
    """Whether the log goes on for long after its last error, which may end no process."""
    clues: tuple[Match, ...] = ()
    """The lines that speak most of a failure, the most suspicious first."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions that the log names, by program; ``written`` is that of the transformers of the model's
    config.json."""


_known: dict[tuple[Tables, Path, int, int] | None, LogFacts] = {}
"""Facts by path, with the log's size and time before it was read: `submit --wait` looks every few seconds."""


def logs_facts(paths: Sequence[Path]) -> list[LogFacts]:
    """Return what each log shows; nothing for a log that cannot be read. All of each log is read."""
    if len(_known) > _MOST_KNOWN:
        _known.clear()
    stats = {path: reading.stat_of(path) for path in paths}
    keys = {path: stat and (tables(), path, stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}
    unread = [path for path, key in keys.items() if key not in _known]
    _known.update({keys[path]: LogFacts() for path in unread})
    packed = [path for path in unread if reading.is_packed(path)]
    plain = [path for path in unread if path not in packed and path.is_file() and os.access(path, os.R_OK)]
    for path, lines in chain(hits(plain, tables().first_pass), ((path, None) for path in packed)):
        with suppress(OSError), reading.opened(path) as log:
            _known[keys[path]] = facts_of_stream(log, str(path), lines)
    return [_known[keys[path]] for path in paths]


def facts_of_stream(log: BinaryIO, name: str, lines: Iterable[Hit] | None = None) -> LogFacts:
    """Return what a log shows that is open, and can be read from any place.

    ``lines`` are those that may count; without them all of the log is searched.
    """
    reading.seek_last_lines(log, LATE_LINES, _LATE_BYTES)
    late_at = log.tell()
    look = _Look(late_at)
    looked_at = look.matches_in(log, _hits_of(log) if lines is None else lines)
    chosen = _chosen(looked_at)
    if not chosen:
        return LogFacts(versions=look.versions)
    matches = [replace(match, groups=look.versions | match.groups) for match in chosen]
    rivals = [match for match in looked_at if match.is_rival]
    found = explain.findings(matches, name, rivals)
    ends = zip(found, matches, strict=True)
    late = [finding for finding, match in ends if finding.ends_a_process and match.at >= late_at]
    late_cause = next(iter(explain.likeliest_first(explain.of_lines([late]))), None)
    late_error = _first_error(_chosen([match for match in looked_at if match.at >= late_at]))
    first = _first_error(chosen)
    last = max((match.at for match in looked_at if _weight(match) < _MAYBE_WELL), default=0)
    clues = [
        replace(match, suspicion=_weight(match) + (0 if match.at >= last - _CLUSTER_BYTES else 2))
        for match in looked_at
    ]
    return LogFacts(
        first.text if first else None,
        tuple(found),
        _own_error(log, first, name) if first and first.text.startswith(_ERROR) else None,
        late_cause,
        late_cause.match if late_cause else late_error.text if late_error else None,
        _survived(log, matches, max(match.at for match in looked_at)),
        tuple(heapq.nsmallest(2 * _MOST_SUSPICIOUS, clues, key=_suspicion)),
        look.versions,
    )


def _hits_of(log: BinaryIO) -> Iterator[Hit]:
    """Yield the lines of an open log that may count."""
    texts = tables().first_pass
    try:
        searched = hits([Path(f"/proc/{os.getpid()}/fd/{log.fileno()}")], texts)
    except OSError:  # it is in memory
        searched = iter([(Path(), None)])
    for _, lines in searched:
        yield from hits_in(log, texts) if lines is None else lines


def nearest_to_an_error(log: BinaryIO, *, only: bool) -> list[str]:
    """Return the last lines of a log that may speak of a failure; else the last ones, unless ``only``."""
    reading.seek_last_lines(log, LATE_LINES, _LATE_BYTES)
    lines = (reading.decode(reading.uncoloured(line)).strip() for line in reading.lines_of(log, _LATE_BYTES))
    texts = list(filter(None, lines))
    spoken = [text for text in texts if words()["suspicious"].search(text) and not kinds.is_harmless(text)]
    if only:
        texts = spoken = [text for text in spoken if not words()["unsaid"].search(text)]
    return [text[:_SHOWN] for text in (spoken or texts)[-_MOST_SUSPICIOUS:]]


def suspicious_lines(
    facts: Sequence[LogFacts], names: Sequence[str], hosts: Mapping[str, str]
) -> list[SuspiciousLine]:
    """Return the lines of several logs that speak most of a failure, each kind once, without keys.

    ``names`` are the logs', and ``hosts`` the nodes of logs by their names, where a run's records know them.
    """
    clues = [(place, clue) for place, fact in enumerate(facts) for clue in fact.clues]
    by_kind: dict[str, tuple[int, Match]] = {}
    for place, clue in sorted(clues, key=lambda placed: _suspicion(placed[1])):
        by_kind.setdefault(re.sub(r"[\da-f]+", "0", clue.text), (place, clue))
    lines = []
    for place, clue in sorted([*by_kind.values()][:_MOST_SUSPICIOUS], key=lambda it: (it[0], it[1].at)):
        name = names[place]
        rank = explain.rank_of(name) if clue.rank is None else clue.rank
        written = (clue.host or hosts.get(name, ""), clue.time, reading.quoted(clue.text[:_SHOWN]))
        lines.append(SuspiciousLine(name, clue.line, clue.at, rank, *written))
    return lines


def _suspicion(clue: Match) -> tuple[int, int]:
    return clue.suspicion, clue.at


def _weight(clue: Match) -> int:
    """Return how far a line is from a failure: roots and errors come before what follows."""
    if clue.weight is None:
        return 0 if clue.cause.kind is Kind.ROOT else 2
    if clue.weight in (kinds.SUSPICIOUS, kinds.HANDLED):
        return _MAYBE_WELL
    return 2 if clue.weight == kinds.ELSEWHERE else 1


def _lines_at(log: BinaryIO, lines: Iterable[Hit]) -> Iterator[SuspectLine]:
    """Yield lines of a log with what stands around them.

    After a very long line come the pieces of it that may show something, as of a progress bar that ends no
    line.
    """
    block, begin, whole = b"", 0, False
    for number, at in lines:
        if not (begin <= max(0, at - _BEFORE_BYTES) and (whole or at + _AFTER_BYTES <= begin + len(block))):
            begin = max(0, at - _BEFORE_BYTES)
            log.seek(begin)
            block = log.read(_BLOCK_BYTES)
            whole = len(block) < _BLOCK_BYTES
        line = SuspectLine(block, at - begin, at, number)
        yield line
        is_begin = block[at - begin - 1 : at - begin] in (b"", b"\n")
        if is_begin and line.is_cut:
            pieces = takewhile(lambda hit: hit[0] == 1, hits_in(log, tables().first_pass, at))
            yield from _lines_at(log, ((number, piece) for _, piece in pieces if piece != at))


class _Look:
    """The exact look at lines of a log that may count: what they say since the server was ready last.

    Lines that differ in their numbers only are looked at once, and once more near the end. Of many different
    errors those of the beginning and of the end are kept.
    """

    def __init__(self, late_at: int) -> None:
        self._late_at = late_at
        self.versions: dict[str, str] = {}
        """Versions of programs that the lines name."""
        self._begin_again()

    def _begin_again(self) -> None:
        self._found: dict[int, Match] = {}
        self._ids, self._shapes = set[str](), set[int]()
        self._later, self._last = deque[SuspectLine](maxlen=_LAST), deque[Match](maxlen=_LAST)
        self._calm_until = self._traceback_end = 0

    def matches_in(self, log: BinaryIO, lines: Iterable[Hit]) -> list[Match]:
        """Return the lines that an entry knows or that are errors."""
        for line in _lines_at(log, lines):
            self._look_at(line)
        self._calm_until = self._traceback_end = 0
        for line in [*self._later]:
            self._look_at(line, is_last=True)
        return [*self._found.values(), *self._last]

    def _look_at(self, line: SuspectLine, *, is_last: bool = False) -> None:
        shape = hash((line.at >= self._late_at, line.raw[:_LONGEST_SHAPE].translate(_MASK)))
        if shape in self._shapes or line.at < self._calm_until:
            return
        places = tables().index.places_in(reading.uncoloured(line.raw))
        if READY in places:
            self._begin_again()
            return
        entries = [tables().patterns[place] for place in sorted(places)]
        is_full = len(self._found) >= _FIRST
        if is_full and not is_last and not self._may_be_new(entries, line):
            self._later.append(line)
            return
        match = _known_cause([entry for entry in entries if entry[0].calm or not line.is_calm], line)
        is_done = match is None or match.cause.lines == 1
        if match is None and line.at >= self._traceback_end:
            match, is_done = self._unknown(line)
        if is_done:
            self._shapes.add(shape)
        if len(self._shapes) > _MOST_SHAPES:
            self._shapes.clear()
        if match is None:
            return
        if match.cause.kind is Kind.NOISE:
            self.versions.update({name: value for name, value in match.groups.items() if value})
            return
        match = replace(match, time=_said(line.plain, "time"), host=_said(line.plain, "host"))
        is_new = match.weight is None and match.cause.id not in self._ids
        self._ids.add(match.cause.id)
        if is_new or not is_full or match.at in self._found:
            self._found[match.at] = match
        else:
            self._last.append(match)

    def _unknown(self, line: SuspectLine) -> tuple[Match | None, bool]:
        """Return what a line says that no entry knows, and whether others of its shape say the same."""
        begins = kinds.TRACEBACK in line.raw
        end = line.raised() if begins else line
        if end is None:
            return None, False
        if line.is_calm:
            self._calm_until = end.at + begins
            return None, not begins
        self._traceback_end = end.at + 1
        match = end.unknown(is_raised=begins)
        return match, not begins and not (match and match.is_direct)

    def _may_be_new(self, entries: Iterable[tuple[Cause, str]], line: SuspectLine) -> bool:
        """Return whether a line may have an entry that was not seen: a log may be all errors."""
        return any(
            cause.lines > 1 or compiled(pattern).search(line.stripped.text if "^" in pattern else line.plain)
            for cause, pattern in entries
            if cause.id not in self._ids
        )


def _said(text: str, what: str) -> str:
    match = words()[what].search(text)
    return "" if match is None else next(filter(None, match.groups()), match[0])


def _known_cause(candidates: Sequence[tuple[Cause, str]], line: SuspectLine) -> Match | None:
    """Return the first of these entries that the line matches; one that only names the kind is the last."""
    found: list[tuple[Cause, re.Match[str], str]] = []
    for text in line.texts if candidates else ():
        for cause, pattern in candidates:
            window = line.window(text, cause.lines)
            match = compiled(pattern).search(window)
            if match is not None and match.start() <= len(text):
                found.append((cause, match, window))
        if found:
            break
    else:
        return None
    cause, match, window = min(found, key=lambda entry: (entry[0].kind is not Kind.NOISE, entry[0].generic))
    if cause.generic and kinds.is_exception(line.texts[-1]):
        # More is known of a package's own code that reads a model's configuration.
        own = line.unknown(is_raised=True)
        if own is not None and own.cause.id == kinds.MODEL_CONFIG:
            return own
    groups = {name: value or "" for name, value in match.groupdict().items()}
    if cause.own and line.is_of_process(groups.get("pid", "")):
        cause = causes()[cause.own]
    groups |= {} if cause.kind is Kind.NOISE else {kinds.PROPOSAL: line.proposal()}
    return Match(cause, groups, line.number, _around(window, match), line.stripped.rank, line.at)


def _around(window: str, match: re.Match[str]) -> str:
    """Return what matched with its surroundings: the whole lines if they are short, else cut around it."""
    start, end = window.rfind("\n", 0, match.start()) + 1, window.find("\n", match.end())
    text = window[start : len(window) if end < 0 else end]
    if len(text) > _SHOWN and "\n" in match[0]:
        # Of a box the first line says what it is, and the last ones say why.
        text = f"{text.partition(chr(10))[0][:_SHOWN]}\n…{text[-_SHOWN // 2 :]}"
    elif len(text) > _SHOWN:
        first = max(0, match.start() - start - _SHOWN // 3)
        rest = text[first:]
        text = f"{'…' if first else ''}{rest[:_SHOWN]}{'…' if len(rest) > _SHOWN else ''}"
    return " / ".join(part for line in text.split("\n") if (part := line.strip().strip("-").strip()))


def _chosen(looked_at: Sequence[Match]) -> list[Match]:
    """Return the first match of each cause, and the likeliest root among the other errors, in their order."""
    chosen: dict[str, Match] = {}
    for match in looked_at:
        if match.weight is None:
            chosen.setdefault(match.cause.id, match)
    root = kinds.likeliest(match for match in looked_at if match.weight is not None)
    if root is not None and not (root.weight == kinds.SUSPICIOUS and chosen):
        chosen[""] = replace(root, text=root.text[:_SHOWN_ERROR])
    return sorted(chosen.values(), key=lambda match: match.at)


def _survived(log: BinaryIO, found: Sequence[Match], last_at: int) -> bool:
    """Return whether a log goes on after its last error as if nothing had happened."""
    needed = 0
    for match in found:
        cause = match.cause
        if cause.degree is Degree.KNOWN and not cause.survivable:
            return False
        is_precise = kinds.is_exception(match.text) or not (cause.generic or cause.first)
        lines = _SURVIVED_PRECISE if is_precise else _SURVIVED_OTHERWISE
        needed = max(needed, _SURVIVED if cause.survivable else lines)
    log.seek(last_at)
    texts = filter(None, map(reading.decode, reading.lines_of(log)))
    after = (text for text in texts if not words()["stack"].match(text))
    return sum(1 for _ in islice(after, needed + 1)) > needed


def _first_error(chosen: Iterable[Match]) -> Match | None:
    """Return the first error, before what only follows from another one or only may speak of a failure."""
    errors = [match for match in chosen if match.cause.id != kinds.SUSPECT]
    return min(errors, key=lambda match: match.cause.kind is not Kind.ROOT, default=None)


def _own_error(log: BinaryIO, first: Match, name: str) -> Finding:
    """Return the error that a program of this package wrote, with its advice in the line after it."""
    log.seek(first.at)
    log.readline(_ERROR_BYTES)
    advice = reading.decode(log.readline(_ERROR_BYTES)).strip()
    following = advice.removeprefix(_NEXT) if advice.startswith(_NEXT) else ""
    said = first.text.removeprefix(_ERROR)
    place = (name, first.line, explain.rank_of(name), said)
    return Finding(explain.REPORTED, Kind.ROOT, explain.capitalised(said), following, *place)
