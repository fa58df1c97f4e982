"""Reading logs as people keep them: compressed, or in UTF-16."""

from __future__ import annotations

import bz2
import codecs
import gzip
import importlib
import io
import lzma
import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

_Reader = gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile | io.BytesIO
_BLOCK_BYTES = 1 << 20
_MOST_BYTES = 1 << 30
"""So much of a compressed log is read: a small file may hold terabytes of zeros."""


def opened(path: Path) -> BinaryIO:
    """Open a log for reading, also if gzip, bzip2, xz or zstd has compressed it, or if it is in UTF-16.

    Of a damaged file what can be read is returned. Raises OSError.
    """
    log = path.open("rb")
    head = log.read(4)
    log.seek(0)
    unpacked = next((read for magic, read in _READERS.items() if head.startswith(magic)), None)
    if unpacked is None:
        return log
    copy = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115
    with log, suppress(EOFError, ValueError, gzip.BadGzipFile, lzma.LZMAError, zlib.error):
        reader = unpacked(log)
        # What comes before the damage is returned by read1, and not by read.
        while copy.tell() < _MOST_BYTES and (block := reader.read1(_BLOCK_BYTES)):
            copy.write(block)
    copy.seek(0)
    return copy


def _zstd(log: BinaryIO) -> _Reader:
    if sys.version_info >= (3, 14):
        return cast(_Reader, importlib.import_module("compression.zstd").open(log))
    os.lseek(log.fileno(), 0, os.SEEK_SET)
    try:
        read = subprocess.run(["zstd", "-dcq"], stdin=log, stdout=subprocess.PIPE, check=False)
    except FileNotFoundError as error:
        raise OSError("it is compressed with zstd, which is not installed here") from error
    return io.BytesIO(read.stdout)


def _utf16(log: BinaryIO) -> _Reader:
    return io.BytesIO(log.read(_MOST_BYTES).decode("utf-16", "replace").encode())


_READERS: dict[bytes, Callable[[BinaryIO], _Reader]] = {
    b"\x1f\x8b": lambda log: gzip.GzipFile(fileobj=log),
    b"BZh": lambda log: bz2.BZ2File(log),
    b"\xfd7zX": lambda log: lzma.LZMAFile(log),  # noqa: SIM115
    b"\x28\xb5\x2f\xfd": _zstd,
    codecs.BOM_UTF16_LE: _utf16,
    codecs.BOM_UTF16_BE: _utf16,
}
