"""Log bytes as text that is safe to print."""

from __future__ import annotations

import sys
import unicodedata


def decode(raw: bytes) -> str:
    """Decode a line without its end; bytes that are not UTF-8 become U+FFFD."""
    return raw.decode("utf-8", errors="replace").rstrip("\r\n")


def escaped(text: str) -> str:
    """Return ``text`` with control characters escaped.

    An escape sequence could recolour the terminal, rename its window or type
    into it; a direction mark could disguise a line.
    """
    return "".join(character if _harmless(character) else _escape(character) for character in text)


def for_output(text: str) -> str:
    """Return ``text`` escaped for a terminal, and unchanged for a pipe or a file."""
    return escaped(text) if sys.stdout.isatty() else text


def _harmless(character: str) -> bool:
    # Cc: control characters; Cf: invisible format characters, direction marks among them.
    return character in "\t\n" or unicodedata.category(character) not in ("Cc", "Cf")


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
