"""The first pass over logs: which lines contain one of many words; it reads every byte, and looks at few
lines.

ripgrep does it where it is installed. Without it, lines that differ in their numbers only are looked at once.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

from trtllm_hpc.logs.reading import blocks_of

MASK = bytes.maketrans(b"0123456789abcdef", b"1" * 16)
"""Makes numbers and hexadecimal identifiers of the same length equal."""
_REMEMBERED = 200_000
_BYTES_FOR_RIPGREP = 4 << 20
"""Less is searched sooner than the program has started."""
_FILES_AT_ONCE = 2000  # of one command line
_OPTIONS = (
    *("--no-config", "--no-ignore", "--no-messages", "--no-mmap", "--text", "--encoding=none"),
    *("--color=never", "--heading", "--with-filename", "--null", "--line-number", "--byte-offset"),
    "--max-columns=1",  # prints where a line is, and not the line
)
_TOKEN = re.compile(
    r"\\(?:x..|u.{4}|\d+|(?P<escaped>\W)|.)|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<flags>\(\?(?:[aiLmsux-]+[:)]|\())|(?P<open>\((?:\?(?:P<\w+>|<?[=!]|:))?)"
    r"|(?P<close>\))|(?P<or>\|)|(?P<many>(?:[*+?]|\{\d*,?\d*\})\??)|[.^$]|(?P<plain>.)",
    re.DOTALL,
)
_WORD = re.compile(r"[A-Za-z0-9_]{4,}")

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
    runs: list[set[str]] = [{""}]
    run, group = "", set[str]()
    for token in tokens:
        kind = token.lastgroup
        if kind == "many":
            if token[0][0] in "?*{":  # {2} is not optional, but rare
                run, group = run[:-1], set()
            kind = None
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


def words_of(texts: Iterable[str], stems: Iterable[str], common: Collection[str]) -> tuple[str, ...]:
    """Return few texts of which each of these has one: stems, the longest word that is not common, or all
    of it."""
    chosen = list(stems)
    for text in sorted(texts, key=lambda text: (max(map(len, _WORD.findall(text)), default=0), text)):
        if not any(word in text for word in chosen):
            chosen.append(max(set(_WORD.findall(text)).difference(common), key=len, default=text))
    return tuple(chosen)


def hits(
    paths: Sequence[Path], texts: Sequence[str], words: Sequence[str]
) -> Iterator[tuple[Path, Iterator[Hit]]]:
    """Yield plain logs with their lines that may contain a text, each log's in their order; all of each is
    read.

    ``words`` are fewer texts of which each of ``texts`` has one: without ripgrep each takes time.

    A log without such a line may be left out, and a log may come again, if ripgrep did not come to its end.
    """
    size = sum(path.stat().st_size for path in paths if path.is_file())
    if size < _BYTES_FOR_RIPGREP or shutil.which("rg") is None:
        yield from _hits_without(paths, words)
        return
    for first in range(0, len(paths), _FILES_AT_ONCE):
        some = paths[first : first + _FILES_AT_ONCE]
        with tempfile.NamedTemporaryFile() as file:
            file.write("\n".join(map(for_ripgrep, texts)).encode())
            file.flush()
            command = ["rg", *_OPTIONS, f"--file={file.name}", "--", *map(str, some)]
            seen: list[Path] = []
            with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as ripgrep:
                assert ripgrep.stdout is not None
                for path, lines in groupby(_of_ripgrep(ripgrep.stdout), key=lambda it: it[0]):
                    seen.append(path)
                    yield path, (hit for _, hit in lines)
        if ripgrep.returncode not in (0, 1):  # 1: no line matches
            done = set(seen[:-1])
            yield from _hits_without([path for path in some if path not in done], words)


def for_ripgrep(text: str) -> str:
    """Return a text of the first pass as an expression of ripgrep."""
    line_start, plain = ("^", text[1:]) if text.startswith("\n") else ("", text)
    return line_start + re.sub(r"[\\.+*?()|\[\]{}^$]", r"\\\g<0>", plain)


def _of_ripgrep(output: Iterable[bytes]) -> Iterator[tuple[Path, Hit]]:
    path = Path()
    for line in output:
        name, found, rest = line.rpartition(b"\0")
        path = Path(name.decode("utf-8", "surrogateescape")) if found else path
        number, _, rest = rest.partition(b":")
        if rest:
            yield path, (int(number), int(rest.partition(b":")[0]))


def _hits_without(paths: Iterable[Path], words: Sequence[str]) -> Iterator[tuple[Path, Iterator[Hit]]]:
    for path in paths:
        try:
            log = path.open("rb")
        except OSError:
            continue
        with log:
            yield path, hits_in(log, words)


def hits_in(log: BinaryIO, words: Sequence[str], start: int = 0) -> Iterator[Hit]:
    """Yield the lines of a log from ``start`` on that may contain a word; the log's position may be moved
    meanwhile.

    Lines are compared without their numbers. Those that are new are cut at spaces, and what is new of that
    is searched, for words; all of a new line only for texts with spaces.
    """
    masked = [word.encode().translate(MASK) for word in words]
    phrases = [text for text in masked if len(text.split()) != 1 or text.strip() != text]
    masked = [text for text in masked if text not in set(phrases)]
    clean, hot, known, bad = set[bytes](), set[bytes](), set[bytes](), set[bytes]()
    number, at = 1, start
    for block in blocks_of(log, start):
        shapes = block.translate(MASK).split(b"\n")
        new = {shape for shape in shapes if shape not in clean and shape not in hot}
        if new:
            lines = b"\n".join((b"", *new, b""))
            tokens = set(lines.split())
            unknown = tokens - known
            together = b" ".join(unknown)
            for word in masked:
                if word in together:
                    bad.update(token for token in unknown if word in token)
            known |= unknown
            if not bad.isdisjoint(tokens):
                hot.update(shape for shape in new if not bad.isdisjoint(shape.split()))
            for phrase in phrases:
                if phrase in lines:
                    hot.update(shape for shape in new if phrase in b"\n" + shape)
            clean |= new - hot
        if not hot.isdisjoint(shapes):
            begin = at
            for index, shape in enumerate(shapes):
                if shape in hot:
                    yield number + index, begin
                begin += len(shape) + 1
        number += len(shapes) - 1
        at += len(block)
        if len(clean) + len(hot) + len(known) > _REMEMBERED:
            clean, hot, known, bad = set(), set(), set(), set()
