"""What logs show of a failure: a first pass reads all of each, and the exact look only around its hits."""

from __future__ import annotations

import heapq
import os
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import BinaryIO

from trtllm_hpc.logs.causes.explain import (
    BEFORE,
    REPORTED,
    Finding,
    SuspiciousLine,
    capitalised,
    findings,
    likeliest_first,
    of_lines,
    rank_of,
)
from trtllm_hpc.logs.causes.lines import (
    ELSEWHERE,
    FIRST_ERROR,
    MODEL_CONFIG,
    PROPOSAL,
    SUSPECT,
    SUSPICIOUS,
    TRACEBACK,
    Match,
    SuspectLine,
    is_exception,
    is_harmless,
    likeliest,
    stripped,
    suspicious,
)
from trtllm_hpc.logs.causes.table import (
    Cause,
    Degree,
    Kind,
    causes,
    compiled,
    first_pass,
    forgotten_with_causes,
    texts_of,
    words,
)
from trtllm_hpc.logs.reading import (
    LONGEST_LINE_BYTES,
    decode,
    is_packed,
    lines_of,
    opened,
    quoted,
    seek_last_lines,
    stat_of,
    uncoloured,
)
from trtllm_hpc.logs.search import MASK, Hit, hits, hits_in, literals

LATE_LINES = 500
"""So near to a log's end a line may show why its writer ended; its writer survived what stands before."""
_LATE_BYTES = 64 << 10
_ERROR, _NEXT, _ERROR_BYTES = "error: ", "next: ", 1 << 20
"""How programs of this package begin an error, and the advice in the line after it."""
_MOST_KNOWN = 8192
_RARE, _LONGEST_REASON = 3, 300
"""A word is rare that so few lines have; so much of a line is shown as the reason of an error."""
_SHOWN, _SHOWN_ERROR = 300, 600
_BEFORE_BYTES, _WINDOW_BYTES, _AFTER_BYTES = 32 << 10, 256 << 10, 96 << 10
"""What is read around a hit, for the exact look."""
_FIRST, _LAST = 50, 50
"""So many lines that are errors are kept of a log: from its beginning, and before its end."""
_MOST_SHAPES, _LONGEST_SHAPE = 50_000, 4096
_HEAD, _MOST_WORDS, _READY = 3, 100_000, -1
_STACK = re.compile(rb"\s|frame #|#\d+ |=|-{3}|\[?0x")
"""Lines of a stack, a table or a box, which follow an error."""
_SURVIVED_LINES, _SURVIVED_LINES_OTHERWISE, _SURVIVED_LINES_PRECISE = 12, 30, 150
"""After an error that shells survive, after another one, and after an exception or what an entry names
precisely; without indented lines."""
_CLUSTER_BYTES = 16 << 10
"""Errors so near to the last one are the last cluster before the end."""
_MAYBE_WELL = 3
"""How suspicious a line is of the kind that runs have which are well."""
_MOST_SUSPICIOUS = 5


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
    survived: bool = False
    """Whether the log goes on for long after its last error, which may end no process."""
    clues: tuple[Match, ...] = ()
    """The lines that speak most of a failure, in their order; those of the last cluster before the end
    count most."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions that the log names, by program; ``written`` is that of the transformers of the model's
    config.json."""


_known: dict[Path, tuple[tuple[int, int], LogFacts]] = {}
"""Facts by path, with the log's size and time before it was read: `submit --wait` looks every few seconds."""


def logs_facts(paths: Sequence[Path]) -> list[LogFacts]:
    """Return what each log shows; nothing for a log that cannot be read. All of each log is read."""
    if len(_known) > _MOST_KNOWN:
        _known.clear()
    stamps = {path: (stat.st_size, stat.st_mtime_ns) for path in paths if (stat := stat_of(path)) is not None}
    read = {
        path: LogFacts() for path, stamp in stamps.items() if path not in _known or _known[path][0] != stamp
    }
    packed = [path for path in read if is_packed(path)]
    plain = [path for path in read if path not in packed and path.is_file() and os.access(path, os.R_OK)]
    for path, lines in chain(hits(plain, *first_pass()), ((path, None) for path in packed)):
        with suppress(OSError), opened(path) as log:
            read[path] = facts_of_stream(log, str(path), lines)
    _known.update({path: (stamps[path], facts) for path, facts in read.items()})
    return [_known[path][1] if path in stamps else LogFacts() for path in paths]


def facts_of_stream(log: BinaryIO, name: str, lines: Iterable[Hit] | None = None) -> LogFacts:
    """Return what a log shows that is open, and can be read from any place.

    ``lines`` are those that may count; without them all of the log is searched.
    """
    seek_last_lines(log, LATE_LINES, _LATE_BYTES)
    late_at, versions = log.tell(), dict[str, str]()
    looked_at = _looked_at(log, lines, late_at, versions)
    chosen = _chosen(looked_at)
    if not chosen:
        return LogFacts(versions=versions)
    reasons = [_reason(log, it) for it in chosen]
    matches = [
        replace(it, groups=versions | it.groups | ({BEFORE: why.text} if why else {}))
        for it, why in zip(chosen, reasons, strict=True)
    ]
    if all(it.cause.kind is Kind.CONSEQUENCE for it in matches):
        why = next(filter(None, reasons), None)
        if why is None:  # the lines that may speak of a failure before a line that only reports one
            start, block = _before(log, matches[0].at)
            if text := " / ".join(suspicious(block.splitlines()[-LATE_LINES:], 3, only=True)):
                why = Match(causes()[FIRST_ERROR], {"text": text}, None, text, None, start)
        matches = matches if why is None else [why, *matches]
    rivals = [it for it in looked_at if it.is_error or (it.weight is None and it.cause.kind is Kind.ROOT)]
    found = tuple(
        replace(it, degree=Degree.LIKELY)
        if it.degree is Degree.KNOWN
        and any(rival.at < match.at and rival.cause.id != it.id for rival in rivals)
        else it
        for it, match in zip(findings(matches, name), matches, strict=True)
    )
    late = [it for match, it in zip(matches, found, strict=True) if it.ends_a_process and match.at >= late_at]
    late_cause = next(iter(likeliest_first(of_lines([late]))), None)
    first = _first_error(chosen)
    own = None
    if first is not None and first.text.startswith(_ERROR):
        # A program of this package wrote it, with its advice in the line after it.
        log.seek(first.at)
        log.readline(_ERROR_BYTES)
        advice = decode(log.readline(_ERROR_BYTES)).strip()
        following = advice.removeprefix(_NEXT) if advice.startswith(_NEXT) else ""
        text = first.text.removeprefix(_ERROR)
        own = Finding(
            REPORTED, Kind.ROOT, capitalised(text), following, name, first.line, rank_of(name), text
        )
    late_error = _first_error(_chosen([it for it in looked_at if it.at >= late_at]))
    last = max((it.at for it in looked_at if _weight(it) < _MAYBE_WELL), default=0)
    clues = [replace(it, is_late=it.at >= last - _CLUSTER_BYTES) for it in looked_at]
    return LogFacts(
        None if first is None else first.text,
        found,
        own,
        late_cause,
        late_cause.match if late_cause else late_error.text if late_error else None,
        _survived(log, matches, max(it.at for it in looked_at)),
        tuple(heapq.nsmallest(2 * _MOST_SUSPICIOUS, clues, key=_suspicion)),
        versions,
    )


def scan(log: BinaryIO) -> list[Match]:
    """Return what counts in a log that can be read from any place, in the order of its lines.

    This is the first line of each cause, and the likeliest root among the errors that no entry knows.
    """
    return _chosen(_looked_at(log, None, 0, {}))


def nearest_to_an_error(log: BinaryIO, *, only: bool) -> list[str]:
    """Return the last lines of a log that may speak of a failure; else the last ones, unless ``only``."""
    seek_last_lines(log, LATE_LINES, _LATE_BYTES)
    return suspicious(list(lines_of(log, _LATE_BYTES)), only=only)


def suspicious_lines(
    facts: Sequence[LogFacts], names: Sequence[str], hosts: Mapping[str, str]
) -> list[SuspiciousLine]:
    """Return the lines of several logs that speak most of a failure, each kind once, without keys.

    ``names`` are the logs', and ``hosts`` the nodes of logs by their names, where a run's records know them.
    """
    clues = [(place, clue) for place, it in enumerate(facts) for clue in it.clues]
    seen: dict[str, tuple[int, Match]] = {}
    for place, clue in sorted(clues, key=lambda it: _suspicion(it[1])):
        seen.setdefault(re.sub(r"[\da-f]+", "0", clue.text), (place, clue))
    chosen = sorted(list(seen.values())[:_MOST_SUSPICIOUS], key=lambda it: (it[0], it[1].at))
    return [
        SuspiciousLine(
            name := names[place],
            clue.line,
            clue.at,
            rank_of(name) if clue.rank is None else clue.rank,
            clue.host or hosts.get(name, ""),
            clue.time,
            quoted(clue.text[:_SHOWN]),
        )
        for place, clue in chosen
    ]


def _suspicion(clue: Match) -> tuple[int, int]:
    """The sort key of lines as evidence: roots and errors before what follows; the last cluster first."""
    return _weight(clue) + (0 if clue.is_late else 2), clue.at


def _weight(clue: Match) -> int:
    if clue.weight is None:
        return 0 if clue.cause.kind is Kind.ROOT else 2
    return {SUSPICIOUS: _MAYBE_WELL, ELSEWHERE: 2}.get(clue.weight, 1 if clue.is_error else _MAYBE_WELL)


@cache
def _patterns() -> list[tuple[Cause, str]]:
    """Return the patterns of all causes, each after its cause."""
    return [(cause, pattern) for cause in causes().values() for pattern in cause.patterns]


@cache
def _texts_by_head() -> dict[bytes, dict[bytes, tuple[bytes, list[int]]]]:
    """Return the texts that patterns need, each with its longest word and the places of the patterns.

    They stand by the first letters of the word, without a word by none. Texts of a server that is ready have
    the place ``_READY``.
    """
    by_head: dict[bytes, dict[bytes, tuple[bytes, list[int]]]] = {}
    texts = [(text, place) for place, (_, pattern) in enumerate(_patterns()) for text in texts_of(pattern)]
    for text, place in [*texts, *((text, _READY) for text in literals(words()["ready"].pattern))]:
        word = max(re.findall(r"\w{3,}", text), key=len, default="").encode()
        of_head = by_head.setdefault(word[:_HEAD], {})
        of_head.setdefault(text.encode(), (word, []))[1].append(place)
    return by_head


_plain_words: set[bytes] = set()
"""Words of logs that no text has: most lines consist of words that other lines have, too."""


def _places_in(line: bytes) -> set[int]:
    """Return the places of the patterns that a line may match: it has a text of each."""
    if len(_plain_words) > _MOST_WORDS:
        _plain_words.clear()
    places = set[int]()
    for word in set(line.split()) - _plain_words:
        texts = _texts_with(word)
        for text, of_text in texts:
            if text in line:
                places.update(of_text)
        if not texts:
            _plain_words.add(word)
    return places


@lru_cache(maxsize=4096)
def _texts_with(word: bytes) -> tuple[tuple[bytes, list[int]], ...]:
    """Return the texts that a line with this word may have, and the places of their patterns."""
    by_head = _texts_by_head()
    heads = {word[at : at + _HEAD] for at in range(len(word) - _HEAD + 1)}
    some = (by_head[head] for head in (heads | {b""}) & by_head.keys())
    return tuple((text, places) for texts in some for text, (part, places) in texts.items() if part in word)


for _cache in (_patterns, _texts_by_head, _texts_with):
    forgotten_with_causes(_cache.cache_clear)
for _memory in (_known, _plain_words):
    forgotten_with_causes(_memory.clear)


def _lines_at(log: BinaryIO, lines: Iterable[Hit]) -> Iterator[SuspectLine]:
    """Yield lines of a log with what stands around them.

    After a very long line come the pieces of it that may show something, as of a progress bar that ends no
    line.
    """
    block, begin, whole = b"", 0, False
    for number, at in lines:
        if not (begin <= max(0, at - _BEFORE_BYTES) and (whole or at + _AFTER_BYTES <= begin + len(block))):
            begin, size = max(0, at - _BEFORE_BYTES), _BEFORE_BYTES + _WINDOW_BYTES + _AFTER_BYTES
            log.seek(begin)
            block = log.read(size)
            whole = len(block) < size
        start = at - begin
        end = block.find(b"\n", start)
        raw = block[start : end if end >= 0 else len(block)]
        yield SuspectLine(block, start, raw[:LONGEST_LINE_BYTES], at, number)
        if len(raw) > LONGEST_LINE_BYTES and block[start - 1 : start] in (b"", b"\n"):
            pieces = takewhile(lambda it: it[0] == 1, hits_in(log, first_pass()[1], at))
            yield from _lines_at(log, ((number, piece) for _, piece in pieces if piece != at))


def _looked_at(
    log: BinaryIO, lines: Iterable[Hit] | None, late_at: int, versions: dict[str, str]
) -> list[Match]:
    """Return the lines among these that an entry knows or that are errors, since the server was ready last.

    Lines that differ in their numbers only are looked at once, and once more from ``late_at`` on. Of many
    different errors the last ones are looked at in the end. ``versions`` is filled in.
    """
    patterns = _patterns()
    found, last = dict[int, Match](), dict[int, Match]()
    done, seen, later = set[int](), set[str](), deque[Hit](maxlen=_LAST)
    for is_first_look in (True, False):
        calm_until = traceback_end = 0
        some = later if not is_first_look else hits_in(log, first_pass()[1]) if lines is None else lines
        for line in _lines_at(log, some):
            at, raw = line.at, line.raw
            shape = hash((at >= late_at, raw[:_LONGEST_SHAPE].translate(MASK)))
            if shape in done or at < calm_until:
                continue
            plain = uncoloured(raw)
            known = _places_in(plain)
            if _READY in known:
                found, last, done, seen = {}, {}, set(), set()
                later.clear()
                continue
            entries = [patterns[it] for it in sorted(known)]
            if is_first_look and len(found) >= _FIRST and not _may_be_new(entries, seen, line):
                later.append((line.number, at))
                continue
            matched = _known_cause([it for it in entries if it[0].calm or not line.is_calm], line)
            if matched is not None and matched.cause.generic and is_exception(line.texts[-1]):
                # More is known of a package's own code that reads a model's configuration.
                own = line.unknown(is_raised=True)
                matched = own if own is not None and own.cause.id == MODEL_CONFIG else matched
            is_done = matched is None or matched.cause.lines == 1
            if matched is not None and matched.cause.kind is Kind.NOISE:
                versions.update({name: value for name, value in matched.groups.items() if value})
                matched = None
            elif matched is None and not line.is_source and at >= traceback_end:
                raised = line.raised() if TRACEBACK in raw else None
                if line.is_calm:
                    calm_until = raised.at + 1 if raised else at
                elif raised is not None or TRACEBACK not in raw:
                    matched = (raised or line).unknown(is_raised=raised is not None)
                    traceback_end = raised.at if raised else at
                    is_done = raised is None and not (matched and matched.is_direct)
            if is_done:
                done.add(shape)
            if len(done) > _MOST_SHAPES:
                done.clear()
            if matched is None or (
                matched.weight is not None and (matched.at in found or matched.at in last)
            ):
                continue
            is_new = matched.weight is None and matched.cause.id not in seen
            seen.add(matched.cause.id)
            text = decode(plain)
            matched = replace(matched, time=_said(text, "time"), host=_said(text, "host"))
            (found if is_new or matched.at in found or len(found) < _FIRST else last)[matched.at] = matched
            if len(last) > _LAST:
                del last[next(iter(last))]
    return [*found.values(), *last.values()]


def _may_be_new(entries: Iterable[tuple[Cause, str]], seen: set[str], line: SuspectLine) -> bool:
    """Return whether a line may have one of these entries that was not seen: a log may be all errors."""
    text = ""
    for cause, pattern in entries:
        if cause.id not in seen:
            text = text or decode(uncoloured(line.raw))
            if cause.lines > 1 or compiled(pattern).search(line.text if "^" in pattern else text):
                return True
    return False


def _said(text: str, what: str) -> str:
    match = words()[what].search(text)
    return "" if match is None else next(filter(None, match.groups()), match[0])


def _known_cause(candidates: Sequence[tuple[Cause, str]], line: SuspectLine) -> Match | None:
    """Return the entry among these that the line matches: the first, but one that only names the kind
    last."""
    best: tuple[Cause, re.Match[str], str] | None = None
    for text in line.texts if candidates else ():
        for cause, pattern in candidates:
            window = line.whole(text) if cause.lines == 1 else "\n".join([text, *line.after(cause.lines - 1)])
            match = compiled(pattern).search(window)
            if match is None or match.start() > len(text):
                continue
            is_noise = cause.kind is Kind.NOISE
            if is_noise or best is None or best[0].generic > cause.generic:
                best = cause, match, window
            if is_noise:
                break
        if best is not None:
            break
    if best is None:
        return None
    cause, match, window = best
    if cause.generic and is_exception(line.texts[-1]) and line.is_handled():
        return None
    groups = {name: value or "" for name, value in match.groupdict().items()}
    if cause.own and line.is_of_process(groups.get("pid", "")):
        cause = causes()[cause.own]
    groups |= {} if cause.kind is Kind.NOISE else {PROPOSAL: line.proposal()}
    return Match(cause, groups, line.number, _around(window, match), line.stripped[2], line.at)


def _around(window: str, match: re.Match[str]) -> str:
    """Return what matched with its surroundings: the whole lines if they are short, else cut around it."""
    start = window.rfind("\n", 0, match.start()) + 1
    end = window.find("\n", match.end())
    text = window[start : len(window) if end < 0 else end]
    if len(text) > _SHOWN and "\n" in match[0]:
        # Of a box the first line says what it is, and the last ones say why.
        text = f"{text.partition(chr(10))[0][:_SHOWN]}\n…{text[-_SHOWN // 2 :]}"
    elif len(text) > _SHOWN:
        room = max(0, _SHOWN - (match.end() - match.start())) // 2
        first = max(0, match.start() - start - room)
        last = min(len(text), first + _SHOWN)
        text = f"{'…' if first else ''}{text[first:last]}{'…' if last < len(text) else ''}"
    return " / ".join(part for line in text.split("\n") if (part := line.strip().strip("-").strip()))


def _chosen(looked_at: Sequence[Match]) -> list[Match]:
    """Return the first match of each cause, and the likeliest root among the other errors, in their order."""
    first: dict[str, Match] = {}
    for it in looked_at:
        if it.weight is None:
            first.setdefault(it.cause.id, it)
    root = likeliest(it for it in looked_at if it.weight is not None)
    if root is not None and not (root.weight == SUSPICIOUS and first):
        first[""] = replace(root, text=root.text[:_SHOWN_ERROR])
    return sorted(first.values(), key=lambda it: it.at)


def _survived(log: BinaryIO, found: Sequence[Match], last_at: int) -> bool:
    """Return whether a log goes on after its last error as if nothing had happened."""
    if any(it.cause.degree is Degree.KNOWN and not it.cause.survivable for it in found):
        return False
    needed = max(
        _SURVIVED_LINES
        if it.cause.survivable
        else _SURVIVED_LINES_PRECISE
        if is_exception(it.text) or not (it.cause.generic or it.cause.first)
        else _SURVIVED_LINES_OTHERWISE
        for it in found
    )
    log.seek(last_at)
    after = (line for line in lines_of(log) if line.strip() and not _STACK.match(line))
    return sum(1 for _ in islice(after, needed + 1)) > needed


def _reason(log: BinaryIO, error: Match) -> Match | None:
    """Return a line before an error that may be its reason, where little is known of it.

    It says that something did not work, if only as a warning, and shares a rare word with the error.
    """
    if not (error.cause.first or error.cause.generic):
        return None
    start, block = _before(log, error.at)
    shared: Counter[int] = Counter()
    for word in set(words()["distinctive"].findall(error.text)):
        places = [it.start() for it in islice(re.finditer(re.escape(word.encode()), block), _RARE + 1)]
        if len(places) <= _RARE:
            shared.update({block.rfind(b"\n", 0, at) + 1 for at in places})
    for begin in sorted(shared, key=lambda begin: (-shared[begin], begin)):
        text = stripped(block[begin : block.find(b"\n", begin)])[0].strip()
        if words()["did_not"].search(text) and not is_harmless(text) and text not in error.text:
            line = error.line and error.line - block.count(b"\n", begin)
            said = text[:_LONGEST_REASON]
            return Match(causes()[FIRST_ERROR], {"text": said}, line, said, None, start + begin)
    return None


def _before(log: BinaryIO, at: int) -> tuple[int, bytes]:
    """Return where what stands before a line begins, and what it is."""
    start = max(0, at - _LATE_BYTES)
    log.seek(start)
    return start, log.read(at - start)


def _first_error(chosen: Iterable[Match]) -> Match | None:
    """Return the first error, before what only follows from another one or only may speak of a failure."""
    errors = [it for it in chosen if it.cause.id != SUSPECT]
    return min(errors, key=lambda it: it.cause.kind is not Kind.ROOT, default=None)
