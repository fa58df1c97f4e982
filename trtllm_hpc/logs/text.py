"""Log bytes as text that does no harm to its reader."""

from __future__ import annotations

import sys
import unicodedata


def decode(raw: bytes) -> str:
    """One line without its end; bytes that are no UTF-8 become U+FFFD."""
    return raw.decode("utf-8", errors="replace").rstrip("\r\n")


def neutralised(text: str) -> str:
    """``text`` with control characters spelled out.

    An escape sequence could recolour the terminal, rename its window or type
    into it; a direction mark could show a line other than it is.
    """
    return "".join(character if _harmless(character) else _spelled(character) for character in text)


def for_reader(text: str) -> str:
    """``text`` as it may be printed: neutralised for a terminal, unchanged for a pipe or a file."""
    return neutralised(text) if sys.stdout.isatty() else text


def _harmless(character: str) -> bool:
    # Cc: control characters; Cf: invisible format characters, direction marks among them.
    return character in "\t\n" or unicodedata.category(character) not in ("Cc", "Cf")


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
