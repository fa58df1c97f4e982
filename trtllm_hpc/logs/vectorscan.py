"""Finding one of many texts in large blocks of bytes with Vectorscan, where its Python package is installed.

The package is called after Hyperscan, of which Vectorscan is a fork.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence


class Vectorscan:
    """Finds in which lines of a block texts are, those with a line end first at its start; or ImportError."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        import hyperscan  # imported here: most commands search no large log

        # Of plain texts alone: a single expression with a class takes ten times as long to compile.
        expressions = ["".join(f"\\x{byte:02x}" for byte in text).encode() for text in texts]
        try:
            self._database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
            self._database.compile(expressions=expressions, ids=range(len(texts)))
        except hyperscan.error as error:
            raise ImportError(f"Vectorscan does not work here: {error!r}") from error
        self._lock = threading.Lock()
        """A database has room for one search at a time."""
        self._of_first_line = [(text[1:], place) for place, text in enumerate(texts) if text[:1] == b"\n"]

    def lines_with(self, block: bytes) -> dict[int, list[int]]:
        """Return the numbers of lines, from 0 and in their order, and the places of the texts in each."""
        ends = [(len(start), place) for start, place in self._of_first_line if block.startswith(start)]
        with self._lock:
            self._database.scan(block, match_event_handler=lambda text, _, end, *__: ends.append((end, text)))
        found: dict[int, set[int]] = {}
        number = counted = 0
        for end, text in sorted(ends):
            number += block.count(b"\n", counted, end)
            counted = end
            found.setdefault(number, set()).add(text)
        return {line: sorted(texts) for line, texts in found.items()}
