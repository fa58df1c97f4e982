"""Texts that everything contains which a regular expression matches: they are found much faster."""

from __future__ import annotations

import importlib
import re
import sys
from functools import cache
from typing import Any

_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]|\{\d*,?\d*\}|.", re.DOTALL)


@cache
def anchors_of(pattern: re.Pattern[str]) -> tuple[bytes, ...]:
    """Return texts of which each line that matches contains one; empty if there are none.

    They come from Python's own parse of the expression. If case does not count, they are in lower case.
    """
    parser = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
    try:
        texts = _required(parser.parse(pattern.pattern, pattern.flags))
        if "" in texts:
            return ()
        if pattern.flags & re.IGNORECASE:
            return tuple(text.lower().encode("ascii") for text in texts)
        # What is no UTF-8 in a log is replaced by U+FFFD when it is decoded.
        return () if any("\ufffd" in text for text in texts) else tuple(text.encode() for text in texts)
    except (UnicodeError, AttributeError, TypeError, ValueError):  # or the parser of a later Python differs
        return ()


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


def anchor_of(pattern: str, shortest: int = 4) -> str:
    """Return the longest text that the first line of every match of a pattern contains.

    Of the pattern only what stands outside of groups and character classes is used. Raises ValueError if the
    pattern has no such text of at least ``shortest`` characters, or alternatives outside of a group.
    """
    best = run = ""
    depth = 0
    for token in _TOKEN.findall(pattern):
        if token == "(":
            depth += 1
        elif token == ")":
            depth -= 1
        elif depth:
            continue
        elif token == "|":
            raise ValueError(f"alternatives outside of a group: {pattern}")
        elif token == r"\n":
            break
        elif token in ("?", "*") or token.startswith("{"):
            best, run = max(best, run[:-1], key=len), ""
            continue
        elif len(token) == 1 and token not in "+.^$":
            run += token
            continue
        elif len(token) == 2 and token[0] == "\\" and not token[1].isalnum():
            run += token[1]
            continue
        best, run = max(best, run, key=len), ""
    best = max(best, run, key=len)
    if len(best) < shortest:
        raise ValueError(f"no text that every match contains: {pattern}")
    return best
