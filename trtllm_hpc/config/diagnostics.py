"""Make diagnostics about keys of job files and profiles, and write keys and values for messages."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from string import Formatter
from typing import Any

from trtllm_hpc.errors import Diagnostic

Path = tuple[str | int, ...]
"""Keys and list indices from the root of a file down to a value."""

Diagnostics = Iterator[Diagnostic]
"""The diagnostics that a rule yields."""

JOB_FILE, PROFILE = "job file", "cluster profile"
"""Placeholders for the file of a diagnostic, until ``Tree.placed`` looks it up."""

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LONGEST = 80


def in_job(code: str, field: str, message: str, hint: str | None, value: Any = None) -> Diagnostic:
    """Return a diagnostic about a key of the job file; ``field`` is the key as :func:`dotted` writes it."""
    return Diagnostic(code, message, JOB_FILE, field, value=value, hint=hint)


def in_cluster(code: str, field: str, message: str, hint: str | None, value: Any = None) -> Diagnostic:
    """Return a diagnostic about a key of the cluster profile."""
    return Diagnostic(code, message, PROFILE, field, value=value, hint=hint)


def dotted(path: Path) -> str:
    """Write ``("triton", "options", 2)`` as ``triton.options[2]``; keys with odd characters are quoted."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            word = part if _PLAIN_KEY.fullmatch(part) else shown(part)
            text += f".{word}" if text else word
    return text


def shown(value: Any) -> str:
    """Write a value for a message, on one line of limited length with control characters escaped."""
    # Cut first, because repr() of a huge text is slow.
    text = ascii(value[:_LONGEST]) if isinstance(value, str) and len(value) > _LONGEST else repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known word that ``word`` most likely means."""
    near = get_close_matches(word[:100], list(known), n=1, cutoff=cutoff)
    return near[0] if near else None


def path_refused(error: OSError) -> Diagnostic:
    """Return the diagnostic about a path that the system refuses; ``error.filename`` must be set."""
    path = os.fsdecode(error.filename)
    hint = f"check its permissions: namei -l {shlex.quote(path)}"
    return Diagnostic("unreadable", f"{path}: {error.strerror or error}", hint=hint)


def placeholder_problems(
    field: str, words: Iterable[str], known: Collection[str], unset: Mapping[str, str] | None = None
) -> Diagnostics:
    """Yield diagnostics about the placeholders (words in braces) of a command.

    Args:
        field: the key of the command.
        words: the command.
        known: placeholders that have a value.
        unset: placeholders without a value, with the key that would give them one.
    """
    unset = unset or {}
    for number, word in enumerate(words):
        place = f"{field}[{number}]"
        try:
            parts = list(Formatter().parse(word))
        except ValueError:
            parts = [("", "", ":", None)]
        if any(form or conversion for _, _, form, conversion in parts):
            message = "has a brace that does not belong to a placeholder"
            yield in_job("bad-value", place, message, "double it: {{ or }}", word)
            continue
        for name in (name for _, name, _, _ in parts if name is not None and name not in known):
            if name in unset:
                message, hint = f"{{{name}}} stands for {unset[name]}, which is not set", f"set {unset[name]}"
            else:
                near = nearest(name, (*known, *unset))
                message = f"{{{name}}} is not a placeholder"
                hint = f"write {{{near}}}" if near else f"take one of {', '.join((*known, *unset))}"
            yield in_job("bad-value", place, message, hint, word)
