"""Tables and messages fitted to the terminal: lines break between words, never inside them."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TextIO, TypeAlias

from trtllm_hpc.logs.reading import escaped

NARROW = 100
"""Terminals with fewer columns get the short form of wide tables."""
_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "cyan": 36}

Cell: TypeAlias = "str | tuple[str, str]"
"""Text, or text and its style: words such as ``bold red``."""


class Table:
    """Rows of text below headers and a rule; headers and cells may have several lines.

    By their headers, columns are aligned ``right``, never wrapped (``one_line``), at ``least`` so wide,
    ``cut`` down to that instead of wrapped, or ``optional``: a narrow terminal does without, the last first.
    ``gap`` is the number of spaces between two columns.
    """

    def __init__(
        self,
        *headers: str,
        right: Collection[str] = (),
        one_line: Collection[str] = (),
        least: Mapping[str, int] | None = None,
        cut: Collection[str] = (),
        optional: Sequence[str] = (),
        gap: int = 3,
        rows: Iterable[Sequence[Cell]] = (),
    ) -> None:
        self.headers, self.rows = headers, [tuple(row) for row in rows]
        self._right, self._one_line, self._cut = right, one_line, cut
        self._least, self._optional, self._gap = least or {}, optional, gap

    def add_row(self, *cells: Cell) -> None:
        """Add a row with one cell for each header."""
        assert len(cells) == len(self.headers), cells
        self.rows.append(cells)

    def fitted(self, width: int | None = None, *, styled: bool = False) -> tuple[list[str], list[str]]:
        """Return the lines of the table in ``width`` columns, and the headers of the columns left out.

        Cells are wrapped at words. Columns that do not fit even then are left out if they are optional. Only
        when nothing more can be left out, and a single word (a path) is wider than its column, is the word
        broken. Without a ``width`` each row is as wide as it needs to be.
        """
        limits = {place: self._limits(place) for place in range(len(self.headers))}
        left_out: list[str] = []
        candidates = [header for header in self._optional if header in self.headers]
        while True:
            least, most = ([limit[which] for limit in limits.values()] for which in (0, 1))
            gaps = self._gap * (len(limits) - 1)
            if width is None or not candidates or sum(least) + gaps <= width:
                break
            left_out.insert(0, candidates.pop())
            del limits[self.headers.index(left_out[0])]
        widths = most if width is None else _share_out(least, most, width - gaps)
        chosen = dict(zip(limits, widths, strict=True))
        height = 1 + max(self.headers[place].count("\n") for place in chosen)
        headers = ["\n" * (height - 1 - header.count("\n")) + header for header in self.headers]
        lines = [*self._row(headers, chosen, styled=False), "─" * (sum(widths) + gaps)]
        for row in self.rows:
            lines += self._row(row, chosen, styled=styled)
        return lines, left_out

    def _limits(self, place: int) -> tuple[int, int]:
        """Return the least width of a column (its longest word), and its width without wrapping."""
        header = self.headers[place]
        texts = [header, *(_text(row[place]) for row in self.rows)]
        lines = [line for text in texts for line in text.split("\n")] if "\n" in "".join(texts) else texts
        most = max(self._least.get(header, 0), *map(len, lines), 0)
        if header in self._one_line:
            return most, most
        if header in self._cut:
            return min(most, max(self._least.get(header, 0), len(header))), most
        words = [len(word) for line in lines for word in line.split()]
        return max(self._least.get(header, 0), *words, 0), most

    def _row(self, cells: Sequence[Cell], widths: Mapping[int, int], *, styled: bool) -> list[str]:
        """Return the lines of a row; ``widths`` by the places of the columns that are shown."""
        wrapped = {place: self._wrapped(_text(cells[place]), place, width) for place, width in widths.items()}
        lines = []
        for number in range(max(map(len, wrapped.values()), default=0)):
            parts = []
            for place, width in widths.items():
                text = wrapped[place][number] if number < len(wrapped[place]) else ""
                padding = " " * (width - len(text))
                cell = cells[place]
                if styled and text and not isinstance(cell, str):
                    codes = ";".join(str(_CODES[word]) for word in cell[1].split())
                    text = f"\x1b[{codes}m{text}\x1b[0m" if codes else text
                parts.append(padding + text if self.headers[place] in self._right else text + padding)
            lines.append((" " * self._gap).join(parts).rstrip())
        return lines

    def _wrapped(self, text: str, place: int, width: int) -> list[str]:
        if len(text) <= width and "\n" not in text:
            return [text]
        if self.headers[place] in self._cut:
            return [shortened(text, width)]
        lines = []
        for line in text.split("\n"):
            lines += textwrap.wrap(line, width, break_on_hyphens=False) or [""]
        return lines


def _text(cell: Cell) -> str:
    return escaped(cell if isinstance(cell, str) else cell[0])


def _share_out(least: Sequence[int], most: Sequence[int], room: int) -> list[int]:
    """Share ``room`` among columns: what each needs, then more to those that want little more."""
    widths = list(least)
    while sum(widths) > room:  # a word is wider than the terminal: break words, of wrapped cells first
        wrapped = [index for index, width in enumerate(widths) if least[index] < most[index] and width > 8]
        widest = max(wrapped or range(len(widths)), key=lambda index: widths[index])
        if widths[widest] <= 1:
            break
        widths[widest] -= 1
    order = sorted(range(len(widths)), key=lambda index: most[index] - widths[index])
    for position, index in enumerate(order):
        spare = max(room - sum(widths), 0)
        widths[index] += min(most[index] - widths[index], spare // (len(order) - position))
    return widths


def shortened(text: str, width: int) -> str:
    """Return a line in at most ``width`` columns; its end is replaced by an ellipsis if it is longer."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def as_text(table: Table, width: int | None = 100) -> str:
    """Return a table as plain text of ``width`` columns, without colours or trailing spaces."""
    return "".join(f"{line}\n" for line in table.fitted(width)[0])


def print_table(table: Table) -> None:
    """Print a table as wide as the terminal; into a pipe or a file each row is one line."""
    width = terminal_width()
    lines, left_out = table.fitted(width, styled=width is not None and "NO_COLOR" not in os.environ)
    if left_out:
        note = f"(no room for: {', '.join(left_out)}; widen the terminal or use --json to see them)"
        lines.append(wrap(note, width))
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def wrap(text: str, width: int | None) -> str:
    """Wrap each line of ``text`` at words, indented as the line is; with ``None`` change nothing."""
    if width is None:
        return text
    lines = []
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        wrapped = textwrap.wrap(
            line, width, subsequent_indent=f"{indent}  ", break_long_words=False, break_on_hyphens=False
        )
        lines += wrapped or [""]
    return "\n".join(lines)


def terminal_width(stream: TextIO | None = None) -> int | None:
    """Return the width of the terminal on ``stream`` (standard output); ``None`` if it is not a terminal."""
    stream = sys.stdout if stream is None else stream
    return shutil.get_terminal_size().columns if stream.isatty() else None
