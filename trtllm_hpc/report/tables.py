"""Tables and messages fitted to the terminal: lines break between words, never inside them."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_PIPE_WIDTH = 2000
"""Columns for pipes and files: wider than any row, so that each row is one line."""
NARROW = 100
"""Terminals with fewer columns get the short form of wide tables."""


def plain_table(*headers: str, right: Sequence[str] = (), one_line: Sequence[str] = ()) -> Table:
    """Return an empty table with a rule below its headers and no other lines.

    ``right`` and ``one_line`` are the headers of columns that are aligned to the right, or never wrapped.
    """
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for header in headers:
        table.add_column(
            header,
            justify="right" if header in right else "left",
            no_wrap=header in one_line,
            overflow="fold",
        )
    return table


def fit(table: Table, width: int, optional: Sequence[str] = ()) -> tuple[Table, list[str]]:
    """Fit a table into ``width`` columns; return it with the headers of the columns left out.

    Cells are wrapped at words. Columns that do not fit even then are left
    out, the last of ``optional`` first. Only when nothing more can be left
    out and a single word (a path) is wider than its column is that word broken.
    """
    from rich.console import Console

    console = Console(width=_PIPE_WIDTH, color_system=None, emoji=False)
    shown = [column.header for column in table.columns]
    left_out: list[str] = []
    candidates = [header for header in optional if header in shown]
    while True:
        chosen = [index for index, column in enumerate(table.columns) if column.header not in left_out]
        fitted = _select(table, chosen)
        least, most = _cell_widths(fitted, console)
        frame = console.measure(fitted).maximum - sum(most)
        room = width - frame
        if sum(least) <= room or not candidates:
            break
        left_out.insert(0, candidates.pop())
    for column, wanted, given in zip(fitted.columns, most, _share_out(least, most, room), strict=True):
        column.width = given
        column.no_wrap = column.no_wrap and given >= wanted
    return fitted, left_out


def _select(table: Table, chosen: Sequence[int]) -> Table:
    """Copy a table with the chosen columns only."""
    from rich.table import Table as RichTable

    copy = RichTable(
        box=table.box,
        padding=table.padding,
        collapse_padding=table.collapse_padding,
        pad_edge=table.pad_edge,
        show_header=table.show_header,
        show_edge=table.show_edge,
    )
    columns = [table.columns[index] for index in chosen]
    for column in columns:
        copy.add_column(
            column.header,
            justify=column.justify,
            style=column.style,
            no_wrap=column.no_wrap,
            min_width=column.min_width,
            overflow="fold",
        )
    for cells in zip(*(column.cells for column in columns), strict=True):
        copy.add_row(*cells)
    return copy


def _cell_widths(table: Table, console: Console) -> tuple[list[int], list[int]]:
    """Return the least width of each column (its longest word) and its width without wrapping."""
    least, most = [], []
    for column in table.columns:
        measured = [console.measure(cell) for cell in (column.header, *column.cells)]
        wanted = max([column.min_width or 0, *(cell.maximum for cell in measured)])
        word = max([column.min_width or 0, *(cell.minimum for cell in measured)])
        most.append(wanted)
        least.append(wanted if column.no_wrap else word)
    return least, most


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


def as_text(table: Table, width: int = 100, optional: Sequence[str] = ()) -> str:
    """Return a table as plain text of ``width`` columns, without colours or trailing spaces."""
    from io import StringIO

    from rich.console import Console

    text = StringIO()
    Console(file=text, width=width, color_system=None, force_terminal=False, emoji=False).print(
        fit(table, width, optional)[0]
    )
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def print_table(table: Table, optional: Sequence[str] = ()) -> None:
    """Print a table as wide as the terminal; into a pipe or a file each row is one line.

    ``optional`` are the headers of columns that may be left out, the least important last.
    """
    width = terminal_width()
    if width is None:
        sys.stdout.write(as_text(table, _PIPE_WIDTH))
        return
    from rich.console import Console

    fitted, left_out = fit(table, width, optional)
    Console(width=width, emoji=False).print(fitted)
    if left_out:
        note = f"(no room for: {', '.join(left_out)}; widen the terminal or use --json to see them)"
        sys.stdout.write(f"{wrap(note, width)}\n")


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
    """Return the columns of the terminal on ``stream`` (standard output); ``None`` if it is none."""
    stream = sys.stdout if stream is None else stream
    return shutil.get_terminal_size().columns if stream.isatty() else None
