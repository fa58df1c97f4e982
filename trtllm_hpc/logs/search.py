"""Finding the lines of logs that contain one of many texts, by ripgrep or grep.

Every byte is read, by the program; Python reads the lines that it has found.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import IO, BinaryIO

from trtllm_hpc.logs.reading import LONGEST_LINE_BYTES, blocks_of

_PROGRAMS = {
    "rg": ("--no-config", "--no-ignore", "--no-mmap", "--encoding=none", "--no-heading"),
    "grep": ("--extended-regexp",),
}
"""The programs that can search, the fastest first, with the options that only they have."""
_OPTIONS = ("--text", "--no-messages", "--color=never", "--with-filename", "--null", "--file=-")
_FILES_AT_ONCE = 2000  # of one command line
_REMEMBERED, _HEAD = 200_000, 4
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


def hits(paths: Sequence[Path], texts: Sequence[str]) -> Iterator[tuple[Path, Iterator[Hit] | None]]:
    """Yield logs with their lines that contain a text, in their order; a log without such a line is left out.

    ``None`` comes with a log that no program could search, or not to its end.
    """
    for path, pieces in printed(paths, texts, "--line-number", "--byte-offset"):
        yield path, None if pieces is None else (_hit(piece) for piece, is_begin in pieces if is_begin)


def _hit(line: bytes) -> Hit:
    number, at, _ = line.split(b":", 2)
    return int(number), int(at)


def hits_in(log: BinaryIO, texts: Sequence[str], start: int = 0) -> Iterator[Hit]:
    """Yield the lines of a log from ``start`` on that contain a text, counted from there.

    A line that is longer than 64 KiB comes in pieces. The log's position may be moved meanwhile.
    """
    sought = [text.encode() for text in texts]
    number, at = 1, start
    for block in blocks_of(log, start):
        in_block = b"\n" + block
        of_block = [text for text in sought if text in in_block]
        for line in block.split(b"\n"):
            if any(text in b"\n" + line for text in of_block):
                yield number, at
            number += 1
            at += len(line) + 1
        number, at = number - 1, at - 1  # the next block begins where the last part of this one ends


def printed(
    paths: Sequence[Path], texts: Sequence[str], *options: str, in_order: bool = False
) -> Iterator[tuple[Path, Iterator[tuple[bytes, bool]] | None]]:
    """Yield logs with what a program prints of their lines that contain a text.

    With ``in_order`` the logs come as in ``paths``. A line comes in pieces of at most 64 KiB, each with
    whether it begins the line. A log without such a line is left out. ``None`` comes with a log that no
    program could search, or not to its end.
    """
    program = next(filter(shutil.which, _PROGRAMS), "")
    threads = ["--threads=1"] if program == "rg" and in_order else []
    # A name with a line end cannot be told from a line that is printed.
    searched = [path for path in paths if "\n" not in str(path)] if program and texts else []
    yield from ((path, None) for path in paths if not searched or "\n" in str(path))
    expressions = "\n".join(map(expression_of, texts)).encode("utf-8", "surrogatepass")
    for first in range(0, len(searched), _FILES_AT_ONCE):
        names = {os.fsencode(path): path for path in searched[first : first + _FILES_AT_ONCE]}
        seen: list[bytes] = []
        with subprocess.Popen(
            [program, *_PROGRAMS[program], *_OPTIONS, *options, *threads, "--", *names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            with suppress(BrokenPipeError), process.stdin as patterns:
                patterns.write(expressions)
            for name, pieces in groupby(_pieces(process.stdout), key=itemgetter(0)):
                seen.append(name)
                yield names[name], ((piece, is_begin) for _, piece, is_begin in pieces)
        if process.returncode not in (0, 1):  # 1: no line matches
            yield from ((path, None) for name, path in names.items() if name not in seen[:-1])


def _pieces(output: IO[bytes]) -> Iterator[tuple[bytes, bytes, bool]]:
    """Yield pieces of the lines that a program prints: the name of the log, the piece, whether it begins."""
    name, is_begin = b"", True
    while piece := output.readline(LONGEST_LINE_BYTES):
        if is_begin:
            name, _, piece = piece.partition(b"\0")
            if not piece.endswith(b"\n"):
                piece += output.readline(LONGEST_LINE_BYTES - len(piece))
        yield name, piece, is_begin
        is_begin = piece.endswith(b"\n")


def expression_of(text: str) -> str:
    """Return a text as a regular expression of ripgrep and grep; a line end before it is a line's start."""
    anchor, plain = ("^", text[1:]) if text.startswith("\n") else ("", text)
    return anchor + re.sub(r"[\\.+*?()|\[\]{}^$]", r"\\\g<0>", plain)
