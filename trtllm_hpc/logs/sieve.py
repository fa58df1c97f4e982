"""Finding the few lines of a large log that may contain one of many texts, by whole blocks of bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, TypeVar

from trtllm_hpc.logs.reading import uncoloured

_MASK = bytes.maketrans(b"0123456789abcdef", b"1" * 16)
"""Makes numbers and hexadecimal identifiers of the same length equal."""
_REMEMBERED_BYTES = 8 << 20

Value = TypeVar("Value")


@dataclass(frozen=True)
class Suspect(Generic[Value]):
    """A line that may contain one of the texts."""

    number: int
    """Of the line in its block, from 0."""
    start: int
    """Where it begins in the block."""
    end: int
    shape: bytes
    """The same for lines that differ in their numbers only."""
    values: list[Value]
    """Those of the texts that it may contain."""


class Sieve(Generic[Value]):
    """Finds lines that may contain a text, whatever its colours.

    Logs repeat themselves: lines that differ in their digits only, or in the letters a to f, are
    searched once. So a line that is found need not contain a text, but none that does is missed.
    """

    def __init__(self, texts: Iterable[tuple[bytes, Value]]) -> None:
        self._texts = [(text.translate(_MASK), value) for text, value in texts]
        self._clean: set[bytes] = set()
        """Shapes of lines that contain none of the texts."""
        self._suspects: dict[bytes, list[Value]] = {}
        self._known_bytes = 0

    def suspects(self, block: bytes) -> tuple[list[Suspect[Value]], int]:
        """Return the lines of a block that may contain a text, in their order, and how many ends it has."""
        shapes = uncoloured(block).translate(_MASK).split(b"\n")
        ends = len(shapes) - 1
        if self._clean.issuperset(shapes):
            return [], ends
        if self._known_bytes > _REMEMBERED_BYTES:
            self._known_bytes, self._clean, self._suspects = 0, set(), {}
        self._look_up({shape for shape in shapes if shape not in self._clean and shape not in self._suspects})
        if self._suspects.keys().isdisjoint(shapes):
            return [], ends
        lines = block.split(b"\n")
        lengths = list(accumulate(map(len, lines), initial=0))
        found = [
            Suspect(number, lengths[number] + number, lengths[number + 1] + number, shape, values)
            for number, shape in enumerate(shapes)
            if (values := self._suspects.get(shape)) is not None
        ]
        return found, ends

    def _look_up(self, shapes: set[bytes]) -> None:
        if not shapes:
            return
        # A text may begin with a line end, which then means that the line begins with it.
        together = b"\n".join((b"", *shapes, b""))
        self._known_bytes += len(together)
        for text, value in self._texts:
            at = together.find(text)
            while at >= 0:
                end = together.index(b"\n", at + 1)
                shape = together[together.rfind(b"\n", 0, at + 1) + 1 : end]
                self._suspects.setdefault(shape, []).append(value)
                at = together.find(text, end)
        self._clean |= shapes - self._suspects.keys()
