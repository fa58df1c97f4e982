"""Reading logs of any size line by line, also compressed ones, from the start or the end, safe to print."""

from __future__ import annotations

import importlib
import io
import os
import re
import subprocess
import sys
import tempfile
import unicodedata
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

LONGEST_LINE_BYTES = 65536
"""A longer line is returned in pieces: a log without line ends must not fill the memory."""

_BLOCK_BYTES = 65536
"""Of a larger block each copy is new memory that the kernel must clear first."""
_COLOURS = re.compile(rb"\x1b\[[0-9;:?]*[ -/]*[@-~]")
"""ECMA-48's control sequences: colours, and what programs send to erase the rest of a line."""
_SEQUENCES = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]")
"""The same in text, also where one character of eight bits begins them."""
_SECRETS = re.compile(
    r"""
      (\b(?:Bearer|Basic)\s+)[\w.~+/=-]{8,}
    | ((?:\b|_)(?:[Aa][Pp][Ii][-_]?[Kk][Ee][Yy]|ACCESS_KEY|SECRET_KEY|SECRET|PASSWORD|PASSWD
        |(?:HF|HUB|AUTH|ACCESS|SESSION|GITHUB|GITLAB|JOB)_TOKEN)["']?\s*[=:]\s*["']?)(?!Bearer\b)[^\s"',;]+
    | \b(hf_|sk-|nvapi-|gh[opsu]_|glpat-|AKIA)[\w-]{8,}
    """,
    re.VERBOSE,
)
"""Keys and tokens, by what stands before them or by how they begin."""
_MASK = "***"
_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zX": "lzma", b"\x28\xb5\x2f\xfd": "zstd"}
_PACKED |= {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
"""How a file begins that is compressed, or in UTF-16."""
_MOST_UNPACKED_BYTES = 1 << 30
"""So much of a compressed log is read: a small file may hold terabytes of zeros."""


def is_packed(path: Path) -> bool:
    """Return whether a log is compressed or in UTF-16; one that cannot be read is not."""
    try:
        with path.open("rb") as log:
            return _packing(log) is not None
    except OSError:
        return False


def _packing(log: BinaryIO) -> str | None:
    head = log.read(4)
    log.seek(0)
    return next((name for magic, name in _PACKED.items() if head.startswith(magic)), None)


def opened(path: Path) -> BinaryIO:
    """Open a log for reading, also if gzip, bzip2, xz or zstd has compressed it, or if it is in UTF-16.

    Of a damaged file what can be read is returned. Raises OSError.
    """
    from lzma import LZMAError  # imported here: few logs are packed
    from zlib import error as ZlibError

    log = path.open("rb")
    packing = _packing(log)
    if packing is None:
        return log
    copy = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115
    with log:
        reader = _unpacked(log, packing)
        with suppress(EOFError, ValueError, OSError, LZMAError, ZlibError):
            # What comes before the damage is returned by read1, and not by read.
            while copy.tell() < _MOST_UNPACKED_BYTES and (block := reader.read1(1 << 20)):
                copy.write(block)
    copy.seek(0)
    return copy


def _unpacked(log: BinaryIO, packing: str) -> Any:
    if packing == "utf-16":
        return io.BytesIO(log.read(_MOST_UNPACKED_BYTES).decode("utf-16", "replace").encode())
    if packing == "zstd" and sys.version_info >= (3, 14):
        return importlib.import_module("compression.zstd").open(log)
    if packing != "zstd":
        return importlib.import_module(packing).open(log)
    os.lseek(log.fileno(), 0, os.SEEK_SET)
    try:
        read = subprocess.run(["zstd", "-dcq"], stdin=log, stdout=subprocess.PIPE, check=False)
    except FileNotFoundError as error:
        raise OSError("it is compressed with zstd, which is not installed here") from error
    return io.BytesIO(read.stdout)


def stat_of(path: Path) -> os.stat_result | None:
    """Return what the file system knows of a file; ``None`` if it is not there."""
    try:
        return path.stat()
    except OSError:
        return None


def uncoloured(raw: bytes) -> bytes:
    """Return text without escape sequences for colours."""
    return _COLOURS.sub(b"", raw) if b"\x1b" in raw else raw


def blocks_of(log: BinaryIO, start: int = 0) -> Iterator[bytes]:
    """Yield the lines from ``start`` on in blocks of about 64 KiB; the position may be moved meanwhile.

    A line is cut only where it alone is longer than a block.
    """
    pending = b""
    while log.seek(start) >= 0 and (chunk := log.read(_BLOCK_BYTES)):
        start += len(chunk)
        block = pending + chunk
        cut = block.rfind(b"\n") + 1 or len(block)
        yield block[:cut]
        pending = block[cut:]
    if pending:
        yield pending


def lines_of(log: BinaryIO, limit_bytes: int | None = None) -> Iterator[bytes]:
    """Yield lines from the file's position on, up to ``limit_bytes``, without reading ahead."""
    read = 0
    while limit_bytes is None or read < limit_bytes:
        line = log.readline(LONGEST_LINE_BYTES)
        if not line:
            return
        read += len(line)
        yield line


def seek_last_lines(log: BinaryIO, count: int, most_bytes: int | None = None) -> None:
    """Move the file's position to where its last ``count`` lines begin, reading from the end.

    ``most_bytes``: how far from the end the position may be; a log may be a single line.
    """
    end = log.seek(0, os.SEEK_END)
    if count == 0:
        return
    needed = count
    position = end
    while position > 0:
        start = max(0, position - _BLOCK_BYTES)
        log.seek(start)
        block = log.read(position - start)
        if position == end and block.endswith(b"\n"):
            needed += 1  # no line begins after the end of the last one
        ends = block.count(b"\n")
        if ends >= needed:
            at = len(block)
            for _ in range(needed):
                at = block.rindex(b"\n", 0, at)
            log.seek(start + at + 1)
            return
        needed -= ends
        position = start
        if most_bytes is not None and end - position >= most_bytes:
            break
    log.seek(position)


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last lines of a log; none if it cannot be read."""
    try:
        with path.open("rb") as log:
            seek_last_lines(log, count, _BLOCK_BYTES * count)
            return list(deque(map(decode, lines_of(log)), maxlen=count))
    except OSError:
        return []


def decode(raw: bytes) -> str:
    """Decode a line without its end; bytes that are not UTF-8 become U+FFFD."""
    return raw.decode("utf-8", errors="replace").rstrip("\r\n")


def escaped(text: str) -> str:
    """Return ``text`` without colours, and with other control characters escaped.

    An escape sequence could recolour the terminal, rename its window or type
    into it; a direction mark could disguise a line.
    """
    if text.isprintable():
        return text
    # Cc: control characters; Cf: invisible format characters, direction marks among them.
    return "".join(
        it.encode("unicode_escape").decode("ascii")
        if it not in "\t\n" and unicodedata.category(it) in ("Cc", "Cf")
        else it
        for it in _SEQUENCES.sub("", text)
    )


def quoted(text: str, *secrets: str) -> str:
    """Return a text of a log as it may be shown anywhere: escaped, with keys and tokens masked.

    ``secrets`` are masked, too.
    """
    for secret in filter(None, secrets):
        text = text.replace(secret, _MASK)
    return _SECRETS.sub(lambda match: "".join(filter(None, match.groups())) + _MASK, escaped(text))


def for_output(text: str) -> str:
    """Return ``text`` escaped for a terminal, and unchanged for a pipe or a file."""
    return escaped(text) if sys.stdout.isatty() else text
