"""Finding the lines of logs that contain one of many texts: by ripgrep where it is installed, else here.

Every byte is read, and few lines are looked at: lines that differ in their numbers only count as one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate, groupby
from operator import itemgetter
from pathlib import Path
from typing import IO, BinaryIO

from trtllm_hpc.logs.reading import blocks_of, stat_of

MASK = bytes.maketrans(b"0123456789abcdef", b"1" * 16)
"""Makes numbers and hexadecimal identifiers of the same length equal."""
_REMEMBERED, _HEAD = 200_000, 4
_BYTES_FOR_RIPGREP = 4 << 20  # less is searched sooner than the program has started
_FILES_AT_ONCE = 2000  # of one command line
_OPTIONS = (
    *("--no-config", "--no-ignore", "--no-messages", "--no-mmap", "--text", "--encoding=none"),
    *("--color=never", "--heading", "--with-filename", "--null"),
)
_READ_BYTES = 65536
_TOKEN = re.compile(
    r"\\(?:x..|u.{4}|\d+|(?P<escaped>\W)|.)|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<flags>\(\?(?:[aiLmsux-]+[:)]|\())|(?P<open>\((?:\?(?:P<\w+>|<?[=!]|:))?)"
    r"|(?P<close>\))|(?P<or>\|)|(?P<many>(?:[*+?]|\{\d*,?\d*\})\??)|[.^$]|(?P<plain>.)",
    re.DOTALL,
)

Hit = tuple[int, int]
"""A line: its number from 1, and where it begins."""


def literals(pattern: str) -> tuple[str, ...]:
    """Return texts of which each match of a regular expression has one; empty if none is known.

    Of each branch it is the longest run of plain characters that no quantifier makes optional. Expressions
    with flags inside have none.
    """
    tokens = list(_TOKEN.finditer(pattern))
    found = {""} if any(token.lastgroup == "flags" for token in tokens) else _literals(iter(tokens))
    return () if "" in found else tuple(sorted(found))


def _literals(tokens: Iterator[re.Match[str]]) -> set[str]:
    branches: list[set[str]] = []
    runs, run, group = [{""}], "", set[str]()
    for token in tokens:
        kind = token.lastgroup
        if kind == "many" and token[0][0] in "?*{":  # {2} is not optional, but rare
            run, group = run[:-1], set()
        if group:
            runs.append(group)
            group = set()
        if kind in ("plain", "escaped"):
            run += token[kind]
            continue
        runs.append({run})
        run = ""
        if kind == "open":
            inside = _literals(tokens)
            group = {""} if token[0][-1] in "=!" else inside
        elif kind == "or":
            branches.append(_surest(runs))
            runs = [{""}]
        elif kind == "close":
            break
    return set().union(*branches, _surest([*runs, group or {""}, {run}]))


def _surest(runs: Iterable[set[str]]) -> set[str]:
    return max(runs, key=lambda texts: min(map(len, texts)))


class TextIndex:
    """Many texts with their places in a table, found in a line by the first letters of their longest word."""

    def __init__(self, placed: Iterable[tuple[bytes, int]]) -> None:
        self._by_head: dict[bytes, list[tuple[bytes, bytes, int]]] = {b"": []}
        self._plain: set[bytes] = set()
        """Words that no text has: most lines consist of words that other lines have, too."""
        for text, place in placed:
            word = max(re.findall(rb"\w+", text), key=len, default=b"")
            head = word[:_HEAD] if len(word) >= _HEAD else b""
            self._by_head.setdefault(head, []).append((word, text, place))

    def places_in(self, line: bytes) -> set[int]:
        """Return the places of the texts that a line contains."""
        if len(self._plain) > _REMEMBERED:
            self._plain.clear()
        near = self._by_head[b""].copy()
        for word in set(line.split()) - self._plain:
            heads = {word[at : at + _HEAD] for at in range(len(word) - _HEAD + 1)} & self._by_head.keys()
            of_word = [entry for head in heads for entry in self._by_head[head] if entry[0] in word]
            near += of_word
            if not of_word:
                self._plain.add(word)
        return {place for _, text, place in near if text in line}


@lru_cache(maxsize=2)
def _masked(texts: tuple[str, ...]) -> TextIndex:
    return TextIndex((text.encode().translate(MASK), place) for place, text in enumerate(texts))


def hits(paths: Sequence[Path], texts: tuple[str, ...]) -> Iterator[tuple[Path, Iterator[Hit]]]:
    """Yield plain logs with their lines that may contain a text, each log's in their order; all of each is
    read.

    A log without such a line may be left out, and a log may come again, if ripgrep did not come to its end.
    """
    for path, printed in by_ripgrep(paths, texts, "--line-number", "--byte-offset", "--max-columns=1"):
        if printed is not None:
            yield path, (_hit(place) for lines in printed for place in lines.splitlines())
            continue
        with suppress(OSError), path.open("rb") as log:
            yield path, hits_in(log, texts)


def _hit(place: bytes) -> Hit:
    number, at, _ = place.split(b":", 2)
    return int(number), int(at)


def by_ripgrep(
    paths: Sequence[Path], texts: Sequence[str], *options: str
) -> Iterator[tuple[Path, Iterator[bytes] | None]]:
    """Yield logs with what ripgrep prints of their lines that contain a text, many lines at once.

    ``None`` comes with logs that are to be searched without it: it is not installed, has not come to their
    end, or takes longer to start than they take. A log without such a line is left out.
    """
    sizes = accumulate(stat.st_size for path in paths if (stat := stat_of(path)) is not None)
    is_large = any(size >= _BYTES_FOR_RIPGREP for size in sizes)
    if not (texts and is_large and shutil.which("rg")):
        yield from ((path, None) for path in paths)
        return
    for first in range(0, len(paths), _FILES_AT_ONCE):
        names = {os.fsencode(path): path for path in paths[first : first + _FILES_AT_ONCE]}
        seen: list[bytes] = []
        with tempfile.NamedTemporaryFile() as file:
            file.write("\n".join(map(for_ripgrep, texts)).encode("utf-8", "surrogatepass"))
            file.flush()
            command: list[str | bytes] = ["rg", *_OPTIONS, *options, f"--file={file.name}", "--", *names]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as ripgrep:
                assert ripgrep.stdout is not None
                for name, sections in groupby(_sections(ripgrep.stdout), key=itemgetter(0)):
                    seen.append(name)
                    yield names[name], (lines for _, lines in sections)
        if ripgrep.returncode not in (0, 1):  # 1: no line matches
            yield from ((path, None) for name, path in names.items() if name not in seen[:-1])


def _sections(output: IO[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield whole lines that ripgrep prints, after the name of their log."""
    name, pending = b"", b"\n"  # as if an empty line, as between logs, stood before the first one
    while chunk := output.read(max(_READ_BYTES, len(pending))):
        pending += chunk
        end = pending.rfind(b"\n") + 1
        end -= (b"\n" + pending[:end]).endswith(b"\n\n")  # the name of a log comes next
        going_on, *others = (b"\n" + pending[:end]).split(b"\n\n")
        if going_on.strip(b"\n"):
            yield name, going_on[1:]
        for section in others:
            name, _, lines = section.partition(b"\0")
            yield name, lines
        pending = pending[end:]


def for_ripgrep(text: str) -> str:
    """Return a text of the first pass as an expression of ripgrep."""
    line_start, plain = ("^", text[1:]) if text.startswith("\n") else ("", text)
    return line_start + re.sub(r"[\\.+*?()|\[\]{}^$]", r"\\\g<0>", plain)


def hits_in(log: BinaryIO, texts: tuple[str, ...], start: int = 0) -> Iterator[Hit]:
    """Yield the lines of a log from ``start`` on that may contain a text; the log's position may be moved
    meanwhile. Lines that differ in their numbers only are searched once.
    """
    index, clean, hot = _masked(texts), set[bytes](), set[bytes]()
    number, at = 1, start
    for block in blocks_of(log, start):
        shapes = block.translate(MASK).split(b"\n")
        for shape in set(shapes) - clean - hot:
            (hot if index.places_in(b"\n" + shape) else clean).add(shape)
        if not hot.isdisjoint(shapes):
            begin = at
            for line, shape in enumerate(shapes, number):
                if shape in hot:
                    yield line, begin
                begin += len(shape) + 1
        number += len(shapes) - 1
        at += len(block)
        if len(clean) + len(hot) > _REMEMBERED:
            clean, hot = set(), set()
