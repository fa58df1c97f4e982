"""Finding the entries of the table of causes, and the first error, in a log of any size."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import BinaryIO

from trtllm_hpc.logs.causes.error_texts import (
    ERROR_TEXTS,
    READY_LINE,
    READY_TEXTS,
    TRACEBACK,
    is_error,
    is_harmless,
    is_suspect,
)
from trtllm_hpc.logs.causes.lines import CHAIN_LINES, SuspectLine, is_exception, is_frame
from trtllm_hpc.logs.causes.roots import Root, Weight, is_handled, likeliest, root
from trtllm_hpc.logs.causes.table import Cause, Degree, Kind, Pattern, causes, forgotten_with_causes
from trtllm_hpc.logs.reading import count_lines, lines_of, uncoloured
from trtllm_hpc.logs.sieve import Sieve

_LEAST_BLOCK = 1 << 16
_LONGEST_BLOCK = 16 << 20
"""A log without line ends must not fill the memory."""
_LONGEST_SEARCHED = 1 << 20  # the rest of a longer line is not searched for an error
_SHOWN, _SHOWN_ERROR = 300, 600

_MOST_BYTES, _MOST_BYTES_OF_VECTORSCAN = 16 << 20, 384 << 20
"""Of all logs of one command so much is searched, from their beginnings on."""
_MOST_WORK = 6 << 20
"""The same for the lines that the sieve finds, each with ``_WORK_OF_A_LINE``: a log may consist of them."""
_WORK_OF_A_LINE = 100
_TAIL_BYTES, _LEAST_TAIL_BYTES = 2 << 20, 16 << 10
"""The ends of logs that are too long are searched, too: of all logs, and of each one at least."""
_MOST_ROOTS = 400
_SURVIVED_LINES, _SURVIVED_LINES_OTHERWISE, _SURVIVED_LINES_EXCEPTION = 12, 30, 150
"""After an error that shells survive, after another one, and after an exception; without indented lines."""
_STACK = re.compile(rb"\s|frame #|#\d+ |=|-{3}|\[?0x")
"""Lines of a stack, a table or a box, which follow an error."""
ERROR, READY = "error", "ready"
COUNTED_BYTES = 512 << 20  # beyond this a match has no line number, since counting takes too long


@dataclass(frozen=True)
class Match:
    """An entry of the table, and where a log tells it."""

    cause: Cause
    groups: dict[str, str]
    line: int | None
    """From 1; ``None`` where the log is too long to count its lines."""
    text: str
    """The line without stamps, cut around what matched; several lines are joined by `` / ``."""
    rank: int | None
    """The rank that the line names itself, as ``srun --label`` writes it."""
    at: int = 0
    """Where the line begins, in bytes from where the search began."""


@dataclass(frozen=True)
class Scanned:
    """What a log tells."""

    matches: list[Match]
    """The first match of each cause, and the likeliest root among the errors that no entry of the table
    knows, in the order of the lines. What stands before the server was ready does not count."""
    candidates: list[Match]
    """``matches``, and the other errors that no entry knows, likewise."""
    survived: bool = False
    """Whether the log goes on for long after its last error, which no entry knows as the end of a process."""
    unread_bytes: int = 0
    """Size of the middle that was not searched, because the log is too long."""


@dataclass(frozen=True)
class Bounds:
    """How much of one log is searched: its beginning, then its end, so that a command answers in seconds."""

    head_bytes: int
    head_work: int
    tail_bytes: int


def bounds_of(sizes: Collection[int]) -> Bounds:
    """Return the bounds for each of several logs; all of it is searched where the logs are small."""
    count, total = max(1, len(sizes)), sum(sizes)
    most = _MOST_BYTES_OF_VECTORSCAN if _sieve().expect(total) else _MOST_BYTES
    share = max(most // count, most - (total - max(sizes, default=0)))
    return Bounds(share, _MOST_WORK // count, max(_LEAST_TAIL_BYTES, _TAIL_BYTES // count))


def scan(log: BinaryIO, bounds: Bounds | None = None) -> Scanned:
    """Search a log from its position on, within the bounds of a single log unless others are given."""
    if not log.seekable():
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(log, copy)
            bounds = bounds or bounds_of([copy.tell()])
            copy.seek(0)
            return scan(copy, bounds)
    began = log.tell()
    bounds = bounds or bounds_of(())
    finder = _Finder()
    at = finder.search_blocks(log, 0, bounds.head_bytes, bounds.head_work)
    size = log.seek(0, os.SEEK_END) - began
    unread = max(0, size - bounds.tail_bytes - at)
    if at < size:
        log.seek(began + at + unread)
        finder.search_blocks(log, at + unread, bounds.tail_bytes, None)
    log.seek(began)
    candidates, chosen = finder.candidates()
    numbered = _numbered(log, candidates)
    chosen_matches = [it for it in numbered if it.at in chosen]
    survived = bool(numbered) and _survived(log, chosen_matches, began + numbered[-1].at)
    return Scanned(chosen_matches, numbered, survived, unread)


def _survived(log: BinaryIO, found: Sequence[Match], last_at: int) -> bool:
    """Return whether a log goes on after its last error as if nothing had happened."""
    if any(it.cause.degree is Degree.KNOWN and not it.cause.survivable for it in found):
        return False
    needed = max(
        _SURVIVED_LINES
        if it.cause.survivable
        else _SURVIVED_LINES_EXCEPTION
        if is_exception(it.text)
        else _SURVIVED_LINES_OTHERWISE
        for it in found
    )
    log.seek(last_at)
    after = (line for line in lines_of(log, _LONGEST_SEARCHED) if line.strip() and not _STACK.match(line))
    lines = sum(1 for _ in islice(after, needed + 1))
    log.seek(0)
    return lines > needed


def _numbered(log: BinaryIO, found: Iterable[Match]) -> list[Match]:
    """Return matches in the order of their lines, with the numbers of these.

    Lines are counted only up to the last match: most logs have none.
    """
    matches, line, at = [], 1, 0
    for match in sorted(found, key=lambda it: it.at):
        if match.at <= COUNTED_BYTES:
            line += count_lines(log, match.at - at)
            at = match.at
            match = replace(match, line=line)
        matches.append(match)
    return matches


class _Finder:
    """Searches block after block of one log."""

    def __init__(self) -> None:
        self.found: dict[str, Match] = {}
        """The first match of each cause; its line has no number yet."""
        self._roots: dict[int, Root] = {}
        """Errors that no entry of the table knows, by where they begin."""
        self._traceback_end = 0
        """Where the last traceback ends, whose lines say nothing by themselves."""
        self._done: set[bytes] = set()
        """Shapes of lines that can tell nothing new."""
        self._work = 0

    def candidates(self) -> tuple[list[Match], set[int]]:
        """Return all that was found, without numbers of lines; and where those begin that count."""
        errors = [
            Match(causes()[one.cause], one.groups, None, one.text[:_SHOWN_ERROR], one.rank, one.at)
            for one in self._roots.values()
        ]
        root = likeliest(self._roots.values())
        if root is not None and root.weight is Weight.SUSPECT and self.found:
            root = None
        if root is not None:
            errors = [
                replace(it, text=root.text[:_SHOWN_ERROR], groups=root.groups) if it.at == root.at else it
                for it in errors
            ]
        known = list(self.found.values())
        return [*known, *errors], {it.at for it in known} | (set() if root is None else {root.at})

    def search_blocks(self, log: BinaryIO, at: int, most_bytes: int, most_work: int | None) -> int:
        """Search the log from its position, which is ``at``; return where the search ended."""
        for block, cut in _blocks(log, most_bytes, most_work):
            self._search(block, cut, at)
            at += cut
            if most_work is not None and self._work >= most_work:
                break
        return at

    def _search(self, block: bytes, cut: int, at: int) -> None:
        """Search the lines of a block at ``at`` that begin before ``cut``; matches may reach beyond it."""
        for one in _sieve().suspects(block[:cut]):
            raw = block[one.start : one.end]
            self._work += _WORK_OF_A_LINE + min(len(raw), _LONGEST_SEARCHED)
            if one.shape in self._done:
                continue
            if READY in one.values and READY_LINE.search(raw):
                self.found.clear()
                self._roots.clear()
                self._done.clear()
                continue
            line = SuspectLine(block, one.start, raw)
            entries = [value for value in one.values if isinstance(value, tuple)]
            if (
                line.is_calm
                or line.is_source
                or self._try(entries, line, at)
                or (ERROR in one.values and self._note(line, at))
            ):
                self._done.add(one.shape)

    def _try(self, candidates: Sequence[tuple[Cause, Pattern]], line: SuspectLine, at: int) -> bool:
        """Note which entry the line matches; returns whether more lines like it can tell nothing new."""
        best: tuple[Cause, re.Match[str], str] | None = None
        for text in line.texts:
            for cause, pattern in candidates:
                window = (
                    line.whole(text) if cause.lines == 1 else "\n".join([text, *line.after(cause.lines - 1)])
                )
                match = pattern.regex.search(window)
                if match is None or match.start() > len(text):
                    continue
                if cause.kind is Kind.NOISE:
                    return True
                if best is None or best[0].generic > cause.generic:
                    best = cause, match, window
            if best is not None:
                break
        if best is None or line.line.level == "warning":
            return False
        cause, match, window = best
        handled = cause.generic and is_exception(line.texts[-1]) and is_handled(line.after(CHAIN_LINES))
        if cause.id not in self.found and not handled:
            groups = {name: value or "" for name, value in match.groupdict().items()}
            around = _around(window, match)
            self.found[cause.id] = Match(cause, groups, None, around, line.line.rank, at + line.start)
        self._roots.pop(at + line.start, None)
        return cause.lines == 1 and not handled

    def _note(self, line: SuspectLine, at: int) -> bool:
        """Note an error that no entry knows; returns whether more lines like it can tell nothing new."""
        here, begins_traceback = at + line.start, TRACEBACK in line.raw
        matched = any(it.at == here for it in self.found.values())
        skipped = matched or line.line.level == "warning" or here < self._traceback_end
        if skipped or len(self._roots) >= _MOST_ROOTS:
            return False
        if begins_traceback:
            raised = line.raised()
            if raised is None:
                return False
            line, self._traceback_end = raised, at + raised.start
        text = line.texts[-1]
        is_sure = begins_traceback or is_exception(text) or is_error(text.encode())
        says_error = line.line.level == "error" or is_error(uncoloured(line.raw))
        is_sure = is_sure or (says_error and not text[:1].isspace())
        if is_harmless(text) or is_frame(text) or not (is_sure or is_suspect(text)):
            return False
        one = root(at + line.start, line, line.line.rank, is_suspect=not is_sure, is_raised=begins_traceback)
        self._roots.setdefault(one.at, one)
        return not begins_traceback and not one.is_cause


@cache
def _sieve() -> Sieve[tuple[Cause, Pattern] | str]:
    """Return what finds each pattern by its anchor, each error by its texts, and that a server is ready.

    It remembers what it has seen in the logs before.
    """
    entries: list[tuple[bytes, tuple[Cause, Pattern] | str]] = [
        (anchor.encode(), (cause, pattern))
        for cause in causes().values()
        for pattern in cause.patterns
        for anchor in pattern.anchors
    ]
    entries += [(text, ERROR) for text in (*ERROR_TEXTS, TRACEBACK)]
    return Sieve([*entries, *((text, READY) for text in READY_TEXTS)])


forgotten_with_causes(_sieve.cache_clear)


@cache
def _longest_match() -> int:
    """Return how many lines a match may span."""
    return max(cause.lines for cause in causes().values())


def _blocks(log: BinaryIO, most_bytes: int, most_work: int | None) -> Iterator[tuple[bytes, int]]:
    """Yield blocks: the bytes, and up to where lines may begin.

    The last lines of each block come again in the next, so that what follows a line is there with it.
    """
    pending, read = b"", 0
    reach = _longest_match() + 1
    while True:
        # More at once if the last block was a single line, or it would be copied again and again.
        size = max(min(_sieve().block_bytes, max(most_work or most_bytes, _LEAST_BLOCK)), len(pending))
        chunk = log.read(min(size, most_bytes - read))
        read += len(chunk)
        block = pending + chunk
        if len(chunk) < size or read >= most_bytes:
            yield block, len(block)
            return
        cut = len(block)
        for _ in range(reach):
            cut = block.rfind(b"\n", 0, max(cut, 0))
        if cut <= 0:
            cut = len(block) if len(block) > _LONGEST_BLOCK else 0
        else:
            cut += 1
        if cut:
            yield block, cut
        pending = block[cut:]


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
