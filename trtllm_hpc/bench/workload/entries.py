"""Entries of a data set's file, each with its line: a JSON list, or one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from trtllm_hpc.bench.workload.wanted import misread

_LAYOUTS = "a list of JSON objects, or one JSON object a line"


class Entry(NamedTuple):
    """One JSON object of the file."""

    line: int
    """Where it begins, counted from 1."""
    values: dict[str, Any]


def read_entries(path: Path) -> list[Entry]:
    """All entries of the file, in their order.

    Raises:
        ConfigError: it cannot be read, or holds something else; with the line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = error.strerror or str(error)
        raise misread(path, None, f"cannot be read: {reason}", hint="--file FILE") from None
    except UnicodeDecodeError as error:
        raise misread(path, None, f"is not UTF-8 text: byte {error.start + 1} is none") from None
    found = _of_list(path, text) if text.lstrip().startswith("[") else _of_lines(path, text)
    entries = [_entry(path, line, value) for line, value in found]
    if not entries:
        raise misread(path, None, f"holds no entries; expected {_LAYOUTS}")
    return entries


def _of_lines(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    # Not str.splitlines: it also breaks at letters that JSON allows within a string.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise misread(path, number, f"is not JSON: {_words(error)}; expected {_LAYOUTS}") from None


def _of_list(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    """The items of a JSON list, decoded one by one to know their lines."""
    decoder = json.JSONDecoder()
    place = _skip(text, text.index("[") + 1)
    line, counted = 1, 0
    while place < len(text) and text[place] != "]":
        line, counted = line + text.count("\n", counted, place), place
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            at = text.count("\n", 0, getattr(error, "pos", place)) + 1
            raise misread(path, at, f"is not JSON: {_words(error)}; expected {_LAYOUTS}") from None
        yield line, value
        place = _skip(text, place)
        if text[place : place + 1] == ",":
            place = _skip(text, place + 1)
        elif text[place : place + 1] != "]":
            break
    if text[place:].strip() != "]":
        at = text.count("\n", 0, place) + 1
        raise misread(path, at, "is not JSON: the list must go on with ',' or end with ']'")


def _skip(text: str, place: int) -> int:
    """The next place with something else than white space."""
    while place < len(text) and text[place].isspace():
        place += 1
    return place


def _entry(path: Path, line: int, value: Any) -> Entry:
    if not isinstance(value, dict):
        message = f"must be a JSON object in braces, as each entry; found {type(value).__name__}"
        raise misread(path, line, message)
    return Entry(line, value)


def _words(error: Exception) -> str:
    return error.msg if isinstance(error, json.JSONDecodeError) else str(error)
