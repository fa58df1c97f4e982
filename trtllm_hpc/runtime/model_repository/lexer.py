"""Placeholders in the text of a ``config.pbtxt`` that cannot be parsed yet."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# Strings and comments first: what they hold is not structure. A string ends at its line's end at the latest.
_TOKEN = re.compile(
    r"""(?P<string>"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)"""
    r"""|(?P<comment>\#[^\n]*)"""
    r"""|(?P<placeholder>\$\{[^}\n]*\}?)""",
    re.VERBOSE,
)
PLACEHOLDER = re.compile(r"\$\{([A-Za-z_]\w*)\}", re.ASCII)
_ANYTHING_LIKE_IT = re.compile(r"\$\{([^}\n\"']*)\}?")
NAME = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)


@dataclass(frozen=True)
class Found:
    """One placeholder where it stands."""

    name: str
    """What stands between the braces; with them if they are not closed."""
    line: int
    structural: bool
    """Outside quotes: the text is no protobuf as long as it stands there."""
    start: int
    end: int
    """Half-open range in the text."""
    field: str
    """The word before it, which tells what it is for, e.g. ``data_type``."""


def find_placeholders(text: str) -> tuple[Found, ...]:
    """Every placeholder outside comments, in the order of the text."""
    return tuple(_found(text))


def _found(text: str) -> Iterator[Found]:
    for token in _TOKEN.finditer(text):
        if token["comment"] is not None:
            continue
        for match in _ANYTHING_LIKE_IT.finditer(token[0]):
            start = token.start() + match.start()
            yield Found(
                name=match[1] if match[0].endswith("}") else match[0],
                line=text.count("\n", 0, start) + 1,
                structural=token["placeholder"] is not None,
                start=start,
                end=token.start() + match.end(),
                field=_field_before(text[:start]),
            )


def _field_before(text: str) -> str:
    words = re.findall(r"(\w+)\s*[:\[{]", text[-200:])
    return words[-1] if words else "a value"
