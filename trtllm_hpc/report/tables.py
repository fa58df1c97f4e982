"""Tables, for a terminal of any width and for pipes."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

_WIDTH_OF_PIPES = 2000
"""Wider than any row: what reads a pipe wants a row a line."""
NARROW = 100
"""Columns of a terminal below which wide tables are set in another way."""


def plain_table() -> Table:
    """An empty table as all of this package's look: a line below the headers, and no other."""
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)


def as_text(table: Table, width: int = 100) -> str:
    """A table as plain text, without colours or trailing spaces, in a width of ``width`` columns."""
    from io import StringIO

    from rich.console import Console

    text = StringIO()
    Console(file=text, width=width, color_system=None, force_terminal=False).print(table)
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def print_table(table: Table) -> None:
    """Print a table: as wide as the terminal, or as it likes to be into a pipe or a file."""
    if terminal_width() is not None:
        from rich.console import Console

        Console().print(table)
    else:
        sys.stdout.write(as_text(table, _WIDTH_OF_PIPES))


def terminal_width() -> int | None:
    """Columns of the terminal on standard output; ``None`` if that is a pipe or a file."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
