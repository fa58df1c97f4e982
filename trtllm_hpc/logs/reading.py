"""Reading logs of any size line by line, also compressed ones, from the start or the end, safe to print."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unicodedata
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

LONGEST_LINE_BYTES = _BLOCK_BYTES = 65536
"""A longer line is returned in pieces: a log without line ends must not fill the memory. Of a larger block
each copy is new memory that the kernel must clear first."""
_COLOURS = re.compile(rb"\x1b\[[0-9;:?]*[ -/]*[@-~]")
_SEQUENCES = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]")
"""ECMA-48's control sequences: colours, and what erases the rest of a line. In text one character of eight
bits may begin them, too."""
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
_UNPACKERS = {
    b"\x1f\x8b": ("gzip", "-dcq"),
    b"BZh": ("bzip2", "-dcq"),
    b"\xfd7zX": ("xz", "-dcq"),
    b"\x28\xb5\x2f\xfd": ("zstd", "-dcq"),
    **dict.fromkeys((b"\xff\xfe", b"\xfe\xff"), ("iconv", "-c", "-f", "UTF-16", "-t", "UTF-8")),
}
"""Programs that make plain text of a file, by the first bytes of the file."""
_MOST_UNPACKED_BYTES = 1 << 30
"""So much of a compressed log is read: a small file may hold terabytes of zeros."""


def is_packed(path: Path) -> bool:
    """Return whether a log is compressed or in UTF-16; one that cannot be read is not."""
    with suppress(OSError), path.open("rb") as log:
        return bool(_unpacker(log))
    return False


def _unpacker(log: BinaryIO) -> tuple[str, ...]:
    head = os.pread(log.fileno(), 4, 0)
    return next((command for magic, command in _UNPACKERS.items() if head.startswith(magic)), ())


def opened(path: Path) -> BinaryIO:
    """Open a log for reading, also if gzip, bzip2, xz or zstd has compressed it, or if it is in UTF-16.

    Of a damaged file what can be read is returned. Raises OSError.
    """
    log = path.open("rb")
    command = _unpacker(log)
    if not command:
        return log
    with log:
        if shutil.which(command[0]) is None:
            raise OSError(f"{command[0]}, which reads this kind of file, is not installed here")
        copy = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115
        pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
        with subprocess.Popen(command, stdin=log, stdout=pipe, stderr=quiet) as program:
            assert program.stdout is not None
            while copy.tell() < _MOST_UNPACKED_BYTES and (block := program.stdout.read(1 << 20)):
                copy.write(block)
    copy.seek(0)
    return copy


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
    position = end = log.seek(0, os.SEEK_END)
    while position > 0 and count and (most_bytes is None or end - position < most_bytes):
        start = max(0, position - _BLOCK_BYTES)
        log.seek(start)
        block = log.read(position - start)
        if position == end and block.endswith(b"\n"):
            count += 1  # no line begins after the end of the last one
        before, *lines = block.rsplit(b"\n", count)
        count -= len(lines)
        position = start if count else start + len(before) + 1
    log.seek(position)


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last lines of a log; none if it cannot be read."""
    with suppress(OSError), path.open("rb") as log:
        seek_last_lines(log, count, _BLOCK_BYTES * count)
        return list(deque(map(decode, lines_of(log)), maxlen=count))
    return []


def decode(raw: bytes) -> str:
    """Decode a line without its end; bytes that are not UTF-8 become U+FFFD."""
    return raw.decode("utf-8", errors="replace").rstrip("\r\n")


def decoded(block: bytes) -> list[str]:
    """Decode the lines of a block; a long line comes in pieces."""
    if len(block) >= LONGEST_LINE_BYTES and max(map(len, block.split(b"\n"))) >= LONGEST_LINE_BYTES:
        return list(map(decode, lines_of(cast(BinaryIO, io.BytesIO(block)))))
    lines = block.decode("utf-8", errors="replace").removesuffix("\n").split("\n")
    return [line.rstrip("\r") for line in lines] if b"\r" in block else lines


def escaped(text: str) -> str:
    """Return ``text`` without colours, and with other control characters escaped.

    An escape sequence could recolour the terminal, rename its window or type
    into it; a direction mark could disguise a line.
    """
    if text.isprintable():
        return text
    # Cc: control characters; Cf: invisible format characters, direction marks among them.
    return "".join(
        character.encode("unicode_escape").decode("ascii")
        if character not in "\t\n" and unicodedata.category(character) in ("Cc", "Cf")
        else character
        for character in _SEQUENCES.sub("", text)
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
