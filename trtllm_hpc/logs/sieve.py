"""Finding the few lines of a large log that may contain one of many texts, by whole blocks of bytes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, TypeVar

from trtllm_hpc.logs.reading import uncoloured
from trtllm_hpc.logs.vectorscan import Vectorscan

_MASK = bytes.maketrans(b"0123456789abcdef", b"1" * 16)
"""Makes numbers and hexadecimal identifiers of the same length equal."""
_REMEMBERED_BYTES = 8 << 20
_BLOCK_BYTES = 1 << 16
"""It is searched in several passes, and should fit into a processor's cache."""
_BLOCK_BYTES_OF_VECTORSCAN = 1 << 18
_BYTES_FOR_VECTORSCAN = 16 << 20
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
    values: list[Value]
    """Those of the texts that it may contain."""


class Sieve(Generic[Value]):
    """Finds lines that may contain a text, whatever its colours.

    A text may begin with a line end, which then means that the line begins with it. A line that is found
    need not contain a text, but none that does is missed.

    Large logs are searched with Vectorscan where it is installed. Else it helps that logs repeat
    themselves: lines that differ in their digits only, or in the letters a to f, are searched once.
    """

    def __init__(self, texts: Iterable[tuple[bytes, Value]]) -> None:
        self._texts = list(texts)
        self._masked = [(text.translate(_MASK), value) for text, value in self._texts]
        self._vectorscan: Vectorscan | None = None
        self._clean: set[bytes] = set()
        """Shapes of lines that contain none of the texts."""
        self._suspects: dict[bytes, list[Value]] = {}
        self._known_bytes = 0

    def expect(self, size_bytes: int) -> None:
        """Get ready to search about so many bytes."""
        if size_bytes < _BYTES_FOR_VECTORSCAN or self._vectorscan is not None:
            return
        with suppress(ImportError):
            self._vectorscan = Vectorscan([text for text, _ in self._texts])

    @property
    def block_bytes(self) -> int:
        """How much is best searched at once."""
        return _BLOCK_BYTES if self._vectorscan is None else _BLOCK_BYTES_OF_VECTORSCAN

    def suspects(self, block: bytes) -> list[Suspect[Value]]:
        """Return the lines of a block that may contain a text, in their order."""
        if self._vectorscan is not None:
            return self._found_by(self._vectorscan, block)
        shapes = uncoloured(block).translate(_MASK).split(b"\n")
        if self._clean.issuperset(shapes):
            return []
        if self._known_bytes > _REMEMBERED_BYTES:
            self._known_bytes, self._clean, self._suspects = 0, set(), {}
        self._look_up({shape for shape in shapes if shape not in self._clean and shape not in self._suspects})
        if self._suspects.keys().isdisjoint(shapes):
            return []
        starts = _starts(block)
        return [
            Suspect(starts[number], starts[number + 1] - 1, shape, values)
            for number, shape in enumerate(shapes)
            if (values := self._suspects.get(shape)) is not None
        ]

    def _found_by(self, vectorscan: Vectorscan, block: bytes) -> list[Suspect[Value]]:
        numbers = vectorscan.lines_with(uncoloured(block))
        starts = _starts(block) if numbers else []
        found = []
        for number, texts in numbers.items():
            start, end = starts[number], starts[number + 1] - 1
            shape = uncoloured(block[start:end]).translate(_MASK)
            found.append(Suspect(start, end, shape, [self._texts[text][1] for text in texts]))
        return found

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


def _starts(block: bytes) -> list[int]:
    """Return where each line begins, and where one after the last would."""
    return list(accumulate((len(line) + 1 for line in block.split(b"\n")), initial=0))
