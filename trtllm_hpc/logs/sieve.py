"""Finding the few lines of a large log that may contain one of many texts, by whole blocks of bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Generic, TypeVar

from trtllm_hpc.logs.reading import uncoloured

_MASK = bytes.maketrans(b"0123456789abcdef", b"1" * 16)
"""Makes numbers and hexadecimal identifiers of the same length equal."""
_REMEMBERED_BYTES = 8 << 20
_BLOCK_BYTES = 1 << 16
"""It is searched in several passes, and should fit into a processor's cache."""
_BLOCK_BYTES_OF_VECTORSCAN = 1 << 18
_BYTES_FOR_VECTORSCAN = 1 << 18
"""Less is searched sooner than the library is loaded."""

Value = TypeVar("Value")


@dataclass(frozen=True)
class Suspect(Generic[Value]):
    """A line that may contain one of the texts."""

    start: int
    """Where it begins in the block."""
    end: int
    shape: bytes
    """The same for lines that differ in their numbers only."""
    values: Sequence[Value]
    """Those of the texts that it may contain."""


class Sieve(Generic[Value]):
    """Finds lines that may contain a text, whatever its colours.

    A text may begin with a line end, which then means that the line begins with it. A line that is found
    need not contain a text, but none that does is missed.

    Large logs are searched with Vectorscan where its Python package is installed, which has the name of
    Hyperscan, the library that Vectorscan is a fork of. Else it helps that logs repeat themselves: lines that
    differ in their digits only, or in the letters a to f, are searched once.
    """

    def __init__(self, texts: Iterable[tuple[bytes, Value]]) -> None:
        self._texts = list(texts)
        self._beginnings = [(at, text[1:]) for at, (text, _) in enumerate(self._texts) if text[:1] == b"\n"]
        self._masked = [(text.translate(_MASK), value) for text, value in self._texts]
        self._vectorscan: Any = None
        self._lock = threading.Lock()
        """A database of Vectorscan has room for one search at a time."""
        self._clean: set[bytes] = set()
        """Shapes of lines that contain none of the texts."""
        self._suspects: dict[bytes, list[Value]] = {}
        self._known_bytes = 0

    def expect(self, size_bytes: int) -> bool:
        """Get ready to search about so many bytes; return whether Vectorscan does it, which is faster."""
        if size_bytes >= _BYTES_FOR_VECTORSCAN and self._vectorscan is None:
            with suppress(ImportError):
                self._vectorscan = _vectorscan([text for text, _ in self._texts])
        return self._vectorscan is not None

    @property
    def block_bytes(self) -> int:
        """How much is best searched at once."""
        return _BLOCK_BYTES if self._vectorscan is None else _BLOCK_BYTES_OF_VECTORSCAN

    def suspects(self, block: bytes) -> list[Suspect[Value]]:
        """Return the lines of a block that may contain a text, in their order."""
        plain = uncoloured(block)
        if self._vectorscan is not None:
            found = self._found_by_vectorscan(plain)
            shapes = plain.translate(_MASK).split(b"\n") if found else []
            return _suspects(block, shapes, found)
        shapes = plain.translate(_MASK).split(b"\n")
        if self._clean.issuperset(shapes):
            return []
        if self._known_bytes > _REMEMBERED_BYTES:
            self._known_bytes, self._clean, self._suspects = 0, set(), {}
        self._look_up({shape for shape in shapes if shape not in self._clean and shape not in self._suspects})
        if self._suspects.keys().isdisjoint(shapes):
            return []
        numbers = (number for number, shape in enumerate(shapes) if shape in self._suspects)
        return _suspects(block, shapes, {number: self._suspects[shapes[number]] for number in numbers})

    def _found_by_vectorscan(self, block: bytes) -> dict[int, list[Value]]:
        """Return the values of the texts in each line that has one, by the number of the line from 0."""
        # A text that begins with a line end is not found in the first line.
        ends = [(len(text), place) for place, text in self._beginnings if block.startswith(text)]
        with self._lock:
            self._vectorscan.scan(
                block, match_event_handler=lambda text, _, end, *__: ends.append((end, text))
            )
        places: dict[int, set[int]] = {}
        number = counted = 0
        for end, place in sorted(ends):
            number += block.count(b"\n", counted, end)
            counted = end
            places.setdefault(number, set()).add(place)
        return {line: [self._texts[place][1] for place in sorted(its)] for line, its in places.items()}

    def _look_up(self, shapes: set[bytes]) -> None:
        if not shapes:
            return
        together = b"\n".join((b"", *shapes, b""))
        self._known_bytes += len(together)
        for text, value in self._masked:
            at = together.find(text)
            while at >= 0:
                end = together.index(b"\n", at + 1)
                shape = together[together.rfind(b"\n", 0, at + 1) + 1 : end]
                self._suspects.setdefault(shape, []).append(value)
                at = together.find(text, end)
        self._clean |= shapes - self._suspects.keys()


def _vectorscan(texts: Sequence[bytes]) -> Any:
    """Return a database that finds these texts; raises ImportError if the library is not there."""
    import hyperscan  # imported here: most commands search no large log

    # Of plain texts alone: a single expression with a class takes ten times as long to compile.
    expressions = ["".join(f"\\x{byte:02x}" for byte in text).encode() for text in texts]
    try:
        database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        database.compile(expressions=expressions, ids=range(len(texts)))
    except hyperscan.error as error:
        raise ImportError(f"Vectorscan does not work here: {error!r}") from error
    return database


def _suspects(
    block: bytes, shapes: Sequence[bytes], values: Mapping[int, list[Value]]
) -> list[Suspect[Value]]:
    """Return the lines of these numbers; each line ends where the next one begins."""
    if not values:
        return []
    starts = list(accumulate((len(line) + 1 for line in block.split(b"\n")), initial=0))
    return [
        Suspect(starts[number], starts[number + 1] - 1, shapes[number], of_line)
        for number, of_line in values.items()
    ]
