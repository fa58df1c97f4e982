"""Tables and messages that fit the terminal, with lines broken between words."""

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
"""Spaces between columns."""
_ENDLESS = 1_000_000
"""Width of a pipe or a file, in which each row is one line."""

Cell: TypeAlias = "str | tuple[str, str]"
"""Text, or text and its style: words such as ``bold red``."""


class Table:
    """Rows of text below headers and a rule; headers and cells can have several lines.

    Args:
        headers: headers of the columns.
        right: headers of columns that are aligned right.
        one_line: headers of columns that are never wrapped.
        optional: headers of columns that a narrow terminal leaves out, the last one first.
        rows: first rows.
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

    def fitted(self, width: int | None = None, *, styled: bool = False) -> tuple[str, list[str]]:
        """Return the table as text of ``width`` columns, and the headers of omitted columns.

        Words (such as paths) are broken only if the table is too wide without its optional columns. Without
        ``width`` each row is as wide as necessary.
        """
        # Imported late because most commands print no table.
        from rich import box
        from rich.console import Console
        from rich.padding import Padding
        from rich.table import Table as RichTable

        console = Console(
            file=StringIO(),  # accepts the rule in Unicode, which sys.stdout might not
            width=_ENDLESS if width is None else width,
            height=25,  # without a height, rich assumes 80 columns on a dumb terminal
            force_terminal=styled or None,
            color_system="auto" if styled else None,
        )
        columns = [
            [_text(cell) for cell in ((header, "bold"), *cells)]
            for header, *cells in zip(self.headers, *self.rows, strict=True)
        ]
        widths, left_out = self._widths(columns, console.width)
        table = RichTable(box=box.SIMPLE_HEAD, show_edge=False, padding=0, header_style="")
        shown: list[list[Padding]] = []
        for place, column_width in widths.items():
            # Indent, because the box leaves only one space between columns, and rich's own padding widens the
            # edges before version 14.3.
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

    def _widths(self, columns: Sequence[Sequence[Text]], width: int) -> tuple[dict[int, int], list[str]]:
        """Return the widths of the columns that fit, by position, and the headers of the other columns.

        Each column gets the width of its longest word; then the columns that need least more are widened
        first. (rich would narrow the widest column first, whatever its words.)
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
            widths[place] += max(0, min(most[place] - widths[place], spare() // remaining))
        return widths, left_out


def _text(cell: Cell) -> Text:
    from rich.text import Text

    text, style = (cell, "") if isinstance(cell, str) else cell
    return Text.assemble((escaped(text), style))  # style only the text, not the padding


def as_text(table: Table, width: int | None = 100) -> str:
    """Return a table as plain text of ``width`` columns, without colours and trailing spaces."""
    return table.fitted(width)[0]


def print_table(table: Table) -> None:
    """Print a table that fits the terminal; in a pipe or a file each row is one line."""
    width = terminal_width()
    text, left_out = table.fitted(width, styled=width is not None)
    if left_out:
        note = f"(no room for {', '.join(left_out)}: widen the terminal, or add --json)"
        text += f"{wrap(note, width)}\n"
    sys.stdout.write(text)


def wrap(text: str, width: int | None) -> str:
    """Wrap each line of ``text`` between words, with its indentation; ``None`` changes nothing."""
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
