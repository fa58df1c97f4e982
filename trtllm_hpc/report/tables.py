"""Tables and messages that fit into the terminal; lines break between words."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence
from io import StringIO
from typing import TYPE_CHECKING, TextIO, TypeAlias

from trtllm_hpc.logs.reading import escaped

if TYPE_CHECKING:
    from rich.console import JustifyMethod
    from rich.padding import Padding
    from rich.text import Text

_GAP = 2
"""Spaces between two columns."""
_ENDLESS = 1_000_000
"""Width of a pipe or a file in columns: each row is one line."""

SENTENCE_WIDTH = 80
"""Sentences are wrapped at words within so many columns of a terminal."""

Cell: TypeAlias = "str | tuple[str, str]"
"""Text, or text with its style, e.g. ``bold red``."""


class Table:
    """Rows of text below headers and a rule. Headers and cells may have several lines.

    Args:
        headers: one for each column.
        right: headers of the columns that are aligned to the right.
        one_line: headers of the columns that are never wrapped.
        optional: headers of the columns that a narrow terminal leaves out, the last one first.
    """

    def __init__(
        self,
        *headers: str,
        right: Collection[str] = (),
        one_line: Collection[str] = (),
        optional: Sequence[str] = (),
        rows: Iterable[Sequence[Cell]] = (),
    ) -> None:
        self.headers, self.rows = headers, list(rows)
        self.right, self._one_line, self._optional = right, one_line, optional

    def add_row(self, *cells: Cell) -> None:
        """Add a row with one cell for each header."""
        self.rows.append(cells)

    def fitted(
        self, width: int | None = None, *, styled: bool = False, most: int = _ENDLESS
    ) -> tuple[str, list[str]]:
        """Return the table as text of ``width`` columns, and the headers of the optional columns left out.

        Words (a path) are broken only if the table is too wide without its optional columns. Without a
        ``width`` each row is as wide as it needs to be. The table takes more than ``most`` columns only for
        words that are too long.
        """
        # rich is imported here because most commands print no table.
        from rich import box
        from rich.console import Console
        from rich.padding import Padding
        from rich.table import Table as RichTable

        console = Console(
            file=StringIO(),  # can hold the rule in Unicode, which the encoding of sys.stdout may lack
            width=_ENDLESS if width is None else width,
            height=25,  # without it, rich takes a dumb terminal to be 80 columns wide
            force_terminal=styled or None,
            color_system="auto" if styled else None,
        )
        columns = [
            [_text(cell) for cell in ((header, "bold"), *cells)]
            for header, *cells in zip(self.headers, *self.rows, strict=True)
        ]
        widths, left_out = self._widths(columns, console.width, min(console.width, most))
        table = RichTable(box=box.SIMPLE_HEAD, show_edge=False, padding=0, header_style="")
        shown: list[list[Padding]] = []
        for place, column_width in widths.items():
            # The box leaves one space between columns. (Before 14.3 rich's own padding widens the edges.)
            indent = _GAP - 1 if shown else 0
            header, *cells = (Padding(cell, (0, 0, 0, indent)) for cell in columns[place])
            justify: JustifyMethod = "right" if self.headers[place] in self.right else "left"
            table.add_column(header, justify=justify, width=column_width + indent, overflow="fold")
            shown.append(cells)
        for row in zip(*shown, strict=True):
            table.add_row(*row)
        with console.capture() as capture:
            console.print(table)
        lines = capture.get().rstrip("\n").split("\n")
        return "".join(f"{line.rstrip()}\n" for line in lines), left_out

    def _widths(
        self, columns: Sequence[Sequence[Text]], width: int, wish: int
    ) -> tuple[dict[int, int], list[str]]:
        """Return the widths of the columns that fit, by their places, and the headers of the others.

        Each column gets the width of its longest word. Columns that need little more are widened first.
        rich itself would narrow the widest column first and break its words.
        """
        from rich.cells import cell_len

        texts = ["\n".join(cell.plain for cell in cells) for cells in columns]
        most = [max(map(cell_len, text.split("\n"))) for text in texts]
        rigid = {place for place, header in enumerate(self.headers) if header in self._one_line}
        words = [max(map(cell_len, text.split()), default=0) for text in texts]
        widths = {place: most[place] if place in rigid else words[place] for place in range(len(texts))}

        def spare() -> int:
            return width - sum(widths.values()) - _GAP * (len(widths) - 1)

        optional = [self.headers.index(name) for name in self._optional if name in self.headers]
        left_out: list[str] = []
        while spare() < 0 and optional:
            left_out.insert(0, self.headers[optional[-1]])
            del widths[optional.pop()]
        while spare() < 0 and max(widths.values()) > 1:
            wrapped = [place for place in widths if place not in rigid and widths[place] > 8]
            widths[max(wrapped or widths, key=lambda place: widths[place])] -= 1
        in_order = sorted(widths, key=lambda place: most[place] - widths[place])
        for remaining, place in zip(range(len(widths), 0, -1), in_order, strict=True):
            share = (spare() - width + wish) // remaining
            widths[place] += max(0, min(most[place] - widths[place], share))
        return widths, left_out


def _text(cell: Cell) -> Text:
    from rich.text import Text

    text, style = (cell, "") if isinstance(cell, str) else cell
    return Text.assemble((escaped(text), style))  # styles the text only, not the padding around it


def as_text(table: Table, width: int | None = 100) -> str:
    """Return a table as plain text of ``width`` columns, without colours or trailing spaces."""
    return table.fitted(width)[0]


def print_table(table: Table, *, most: int = _ENDLESS) -> None:
    """Print a table as wide as the terminal, or ``most``; into a pipe or a file each row is one line."""
    width = terminal_width()
    text, left_out = table.fitted(width, styled=width is not None, most=_ENDLESS if width is None else most)
    if left_out:
        note = f"(no room for: {', '.join(left_out)}; widen the terminal or use --json to see them)"
        text += f"{wrap(note, width)}\n"
    sys.stdout.write(text)


def wrap(text: str, width: int | None) -> str:
    """Wrap each line of ``text`` at words and keep its indentation; ``None`` changes nothing."""
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


def sentences(lines: Iterable[str], *, indent: str = "", stream: TextIO | None = None) -> str:
    """Return indented lines; for a terminal, sentences are wrapped at words, in at most 80 columns.

    Lines that begin with a space are quotations, which are not wrapped. ``stream`` is by default standard
    output.
    """
    width = terminal_width() if stream is None else terminal_width(stream)
    width = None if width is None else min(width, SENTENCE_WIDTH)
    return "\n".join(
        f"{indent}{line}" if line.startswith(" ") else wrap(f"{indent}{line}", width) for line in lines
    )


def terminal_width(stream: TextIO | None = None) -> int | None:
    """Return the terminal's width in columns; ``None`` if ``stream`` (standard output) is not a terminal."""
    stream = sys.stdout if stream is None else stream
    return shutil.get_terminal_size().columns if stream.isatty() else None
