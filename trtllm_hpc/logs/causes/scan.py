"""Finding the entries of the table of causes, and the first error, in a log of any size."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import BinaryIO

from trtllm_hpc.logs.causes.table import Cause, Kind, Pattern, causes
from trtllm_hpc.logs.errors import ERROR_TEXTS, TRACEBACK, is_error
from trtllm_hpc.logs.reading import LONGEST_LINE_BYTES, count_lines, uncoloured
from trtllm_hpc.logs.sieve import Sieve

_LONGEST_BLOCK = 16 << 20
"""A log without line ends must not fill the memory."""
_LONGEST_SEARCHED = 1 << 20  # the rest of a longer line is not searched for an error
_SHOWN = 300

_MOST_BYTES, _MOST_BYTES_OF_VECTORSCAN = 48 << 20, 384 << 20
"""Of all logs of one command so much is searched, from their beginnings on."""
_MOST_WORK = 6 << 20
"""The same for the lines that the sieve finds, each with ``_WORK_OF_A_LINE``: a log may consist of them."""
_WORK_OF_A_LINE = 100
_TAIL_BYTES, _LEAST_TAIL_BYTES = 2 << 20, 16 << 10
"""The ends of logs that are too long are searched, too: of all logs, and of each one at least."""
COUNTED_BYTES = 512 << 20  # beyond this a match has no line number, since counting takes too long

_LABEL = re.compile(
    r"""
      \[\d+,(?P<mpirun>\d+)\]<std(?:err|out)>:\s?  # mpirun --tag-output
    | \[rank(?P<torch>\d+)\]:\s?                   # PyTorch
    | (?P<srun>\d+):\ (?=\D)                       # srun --label
    """,
    re.VERBOSE,
)
_STAMP = re.compile(
    r"""
      (?P<glog>[IWEF])\d{4}\ \d\d:\d\d:\d\d\.\d+\s+\d+\ [\w./-]+:\d+\]\s*"?  # Triton
    | \[(?:TensorRT-LLM|TRT-LLM|TensorRT|TRT)\]\s*                          # TensorRT-LLM and TensorRT
    | \[RANK\ (?P<rank>\d+)\]\s*
    | \[(?P<level>INFO|WARNING|ERROR|FATAL|VERBOSE|DEBUG|[IWEFVD])\]\s*
    | \[?\d{4}-\d\d-\d\d[T\ ]\d\d:\d\d:\d\d[^\s\]]*\]?\s+
    | \[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\]\s*
    """,
    re.VERBOSE,
)
_CALM = {"I": "info", "INFO": "info", "V": "info", "VERBOSE": "info", "D": "info", "DEBUG": "info"} | {
    "W": "warning",
    "WARNING": "warning",
}
_ROW_GOES_ON = re.compile(r"^\|\s+\|(?:\s+\|)?\s?(.*?)\s*\|?\s*$")
_ROW = re.compile(r"^\|\s*(\S+)\s*\|\s*\d+\s*\|\s?(.*?)\s*\|?\s*$")


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
class Line:
    """A line without its stamps."""

    text: str
    level: str
    """``info`` or ``warning`` if the line calls itself so; else empty."""
    rank: int | None


@dataclass(frozen=True)
class Scanned:
    """What a log tells."""

    matches: list[Match]
    """The first match of each cause, in the order of the lines."""
    error_at: int | None
    """Where the first line begins that is an error or the beginning of a traceback, in bytes from where the
    search began."""
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
    return Scanned(_numbered(log, finder.found.values()), finder.error_at, unread)


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


def stripped(raw: bytes) -> Line:
    """Return a line without colours, stamps and labels, and what these said."""
    text = uncoloured(raw[:LONGEST_LINE_BYTES]).decode("utf-8", errors="replace").rstrip("\r\n")
    rank, level = None, None
    while True:
        label = _LABEL.match(text)
        stamp = None if label else _STAMP.match(text)
        match = label or stamp
        if match is None:
            return Line(text.removesuffix('"') if level else text, _CALM.get(level or "", ""), rank)
        said = {name: value for name, value in match.groupdict().items() if value is not None}
        level = level or said.get("glog") or said.get("level")
        number = next((said[name] for name in ("mpirun", "torch", "srun", "rank") if name in said), None)
        rank = int(number) if rank is None and number is not None else rank
        text = text[match.end() :]


class _Finder:
    """Searches block after block of one log."""

    def __init__(self) -> None:
        self.found: dict[str, Match] = {}
        """The first match of each cause; its line has no number yet."""
        self.error_at: int | None = None
        self._done: set[bytes] = set()
        """Shapes of lines that can tell nothing new."""
        self._work = 0

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
            line = block[one.start : one.end]
            self._work += _WORK_OF_A_LINE + min(len(line), _LONGEST_SEARCHED)
            if self.error_at is None and None in one.values and _begins_error(line[:_LONGEST_SEARCHED]):
                self.error_at = at + one.start
            entries = [value for value in one.values if value is not None]
            if entries and one.shape not in self._done and self._try(entries, block, one.start, line, at):
                self._done.add(one.shape)

    def _try(
        self, candidates: Sequence[tuple[Cause, Pattern]], block: bytes, start: int, raw: bytes, at: int
    ) -> bool:
        """Note what the line tells; returns whether more lines like it can tell nothing new."""
        line = stripped(raw)
        if line.level == "info" or " NCCL INFO " in line.text:
            return True
        text = _joined_row(line.text, block, start + len(raw))
        best: tuple[Cause, re.Match[str], str] | None = None
        for cause, pattern in candidates:
            window = text if cause.lines == 1 else _window(text, block, start + len(raw), cause.lines)
            match = pattern.regex.search(window)
            if match is None or match.start() > len(text):
                continue
            if cause.kind is Kind.NOISE:
                return True
            if best is None or best[0].generic > cause.generic:
                best = cause, match, window
        if best is None or line.level == "warning":
            return False
        cause, match, window = best
        if cause.id not in self.found:
            groups = {name: value or "" for name, value in match.groupdict().items()}
            around = _around(window, match)
            self.found[cause.id] = Match(cause, groups, None, around, line.rank, at + start)
        return cause.lines == 1


def _begins_error(raw: bytes) -> bool:
    pieces = (raw[at : at + LONGEST_LINE_BYTES] for at in range(0, len(raw), LONGEST_LINE_BYTES))
    return any(TRACEBACK in line or is_error(line) for line in map(uncoloured, pieces))


@cache
def _sieve() -> Sieve[tuple[Cause, Pattern] | None]:
    """Return what finds each pattern by its anchor, and each error by its texts (``None``).

    It remembers what it has seen in the logs before.
    """
    entries: list[tuple[bytes, tuple[Cause, Pattern] | None]] = [
        (anchor.encode(), (cause, pattern))
        for cause in causes().values()
        for pattern in cause.patterns
        for anchor in pattern.anchors
    ]
    return Sieve([*entries, *((text, None) for text in (*ERROR_TEXTS, TRACEBACK))])


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
        size = max(min(_sieve().block_bytes, most_work or most_bytes), len(pending))
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


def _following(block: bytes, end: int, count: int) -> Iterator[bytes]:
    """Yield the lines after the one that ends at ``end``."""
    for _ in range(count):
        if end < 0 or end + 1 >= len(block):
            return
        after = block.find(b"\n", end + 1)
        yield block[end + 1 : len(block) if after < 0 else after]
        end = after


def _window(text: str, block: bytes, end: int, lines: int) -> str:
    return "\n".join([text, *(stripped(raw).text for raw in _following(block, end, lines - 1))])


def _joined_row(text: str, block: bytes, end: int) -> str:
    """Return the last cell of a row of Triton's table of models, which is wrapped at any character."""
    row = _ROW.match(text)
    if row is None:
        return text
    cells = [row[2]]
    for raw in _following(block, end, 20):
        more = _ROW_GOES_ON.match(stripped(raw).text)
        if more is None:
            break
        cells.append(more[1])
    return f"{row[1]}: {''.join(cells)}"


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
