"""How paths and values are written in a finding."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

Path = tuple[str | int, ...]
"""Keys and list indices from the root of a file down to a value."""

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LONGEST = 80


def dotted(path: Path) -> str:
    """``("triton", "options", 2)`` as ``triton.options[2]``; odd keys in quotes, so that they are visible."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            word = part if _PLAIN_KEY.fullmatch(part) else shown(part)
            text += f".{word}" if text else word
    return text


def shown(value: Any) -> str:
    """The value as it is safe to print: control characters escaped, one line, not longer than a line."""
    # Cutting first keeps repr() of a huge value cheap.
    text = ascii(value[:_LONGEST]) if isinstance(value, str) and len(value) > _LONGEST else repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word that ``word`` was most likely meant to be."""
    near = get_close_matches(word[:100], list(known), n=1, cutoff=cutoff)
    return near[0] if near else None
