"""Texts that everything contains which a regular expression matches: they are found much faster."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]|\{\d*,?\d*\}|.", re.DOTALL)
_OTHER_CHARACTERS = re.compile(r"\\[xuUN\d]")
"""Escapes that take the characters after them."""


def anchors_of(pattern: re.Pattern[str]) -> tuple[bytes, ...]:
    """Return texts of which each line that matches contains one; empty if there are none."""
    if pattern.flags != re.UNICODE or _OTHER_CHARACTERS.search(pattern.pattern):
        return ()
    try:
        return tuple(anchor_of(one, 1).encode() for one in _alternatives(pattern.pattern))
    except ValueError:  # no text, or one that is not UTF-8
        return ()


def _alternatives(pattern: str) -> list[str]:
    """Return the alternatives of a pattern outside of its groups."""
    found, depth = [""], 0
    for token in _TOKEN.findall(pattern):
        depth += {"(": 1, ")": -1}.get(token, 0)
        if token == "|" and depth == 0:
            found.append("")
        else:
            found[-1] += token
    return found


def anchor_of(pattern: str, shortest: int = 4) -> str:
    """Return the longest text that the first line of every match of a pattern contains.

    Of the pattern only what stands outside of groups and character classes is used.

    Raises:
        ValueError: the pattern has no such text of at least ``shortest`` characters, or
            alternatives outside of a group.
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
