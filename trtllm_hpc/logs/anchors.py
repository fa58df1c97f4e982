"""Texts that everything contains which a regular expression matches: they are found much faster."""

from __future__ import annotations

import importlib
import re
import sys
from functools import cache
from typing import Any


@cache
def anchors_of(pattern: re.Pattern[str]) -> tuple[bytes, ...]:
    """Return texts of which each line of a log that matches has one; empty if none is known.

    If case does not count, they are in lower case.
    """
    try:
        texts = required_texts(pattern.pattern, pattern.flags)
        if pattern.flags & re.IGNORECASE:
            return tuple(text.lower().encode("ascii") for text in texts)
        # What is not UTF-8 in a log is replaced by U+FFFD when it is decoded.
        return () if any("\ufffd" in text for text in texts) else tuple(text.encode() for text in texts)
    except (UnicodeError, AttributeError, TypeError, ValueError):  # or the parser of a later Python differs
        return ()


def required_texts(pattern: str, flags: int = 0) -> tuple[str, ...]:
    """Return texts of which each match of an expression has one; empty if none is known.

    They come from Python's own parse of the expression.
    """
    parser = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
    texts = _required(parser.parse(pattern, flags))
    return () if "" in texts else tuple(sorted(texts))


def _required(items: Any) -> set[str]:
    """Return texts of which each match of a part of an expression has one; with an empty one: none known."""
    sets: list[set[str]] = []
    run = ""
    for kind, value in items:
        name = str(kind)
        if name == "LITERAL":
            run += chr(value)
            continue
        if name == "AT":  # a place, such as the start of a line, between two characters
            continue
        sets.append({run})
        run = ""
        if name == "SUBPATTERN" and not value[1] and not value[2]:  # without flags of its own
            sets.append(_required(value[3]))
        elif name == "BRANCH":
            sets.append(set().union(*map(_required, value[1])))
        elif name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT") and value[0] > 0:
            sets.append(_required(value[2]))
    sets.append({run})
    return max(sets, key=lambda texts: min(map(len, texts), default=0))
