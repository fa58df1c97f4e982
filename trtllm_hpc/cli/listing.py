"""What the lists of runs, engines, models, jobs... share: one way to print a list, and one to prune it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trtllm_hpc.cli.shared import Span, print_json

if TYPE_CHECKING:
    from trtllm_hpc.report.tables import Cell
    from trtllm_hpc.runs.prune import Pruned

Row = TypeVar("Row")


def print_listing(
    rows: Sequence[Row],
    columns: Mapping[str, Callable[[Row], Cell]],
    *,
    as_json: bool = False,
    empty: str = "",
    below: str = "",
    right: Collection[str] = (),
    one_line: Collection[str] = (),
    optional: Sequence[str] = (),
) -> None:
    """Print rows as a table, or as JSON.

    Args:
        columns: for each header what makes its cell of a row.
        empty: printed if there are no rows; ``below``: printed below the table.
        right, one_line, optional: as for :class:`trtllm_hpc.report.tables.Table`.
    """
    if as_json:
        print_json(rows)
        return
    if not rows:
        click.echo(empty)
        return
    from trtllm_hpc.report.tables import Table, print_table

    cells = [[cell(row) for cell in columns.values()] for row in rows]
    print_table(Table(*columns, right=right, one_line=one_line, optional=optional, rows=cells))
    if below:
        click.echo(below)


def pruning(last: str, *, with_sizes: bool = True) -> Callable[[Callable[..., Sequence[Pruned]]], Any]:
    """Make a command ``prune`` of a function that returns what a selection chooses.

    It gets ``selection: Selection`` and ``remove_them: bool``. ``last`` is for the help, e.g. ``used``.
    """

    def make(choose: Callable[..., Sequence[Pruned]]) -> Callable[..., None]:
        @wraps(choose)
        def prune(*, older_than: float | None, names: tuple[str, ...] = (), yes: bool, **others: Any) -> None:
            from trtllm_hpc.report.formatting import format_bytes
            from trtllm_hpc.runs.prune import Selection

            if names and older_than is not None:
                raise click.UsageError("Give either names or --older-than.")
            selection = Selection(names, older_than)
            chosen = choose(selection=selection, remove_them=yes, **others)
            done = "removed" if yes else "would be removed"
            for it in chosen:
                click.echo(
                    f"{it.name}: {f'{done}, it {it.why}' if it.kept is None else f'stays, it {it.kept}'}"
                )
            going = [it for it in chosen if it.kept is None]
            size = f", {format_bytes(sum(it.bytes or 0 for it in going))}" if with_sizes else ""
            click.echo(f"{len(going)} {done}{size}")
            if going and not yes:
                click.echo("  next: the same command with --yes")

        click.option("--yes", is_flag=True, help="Remove them; without this they are only listed.")(prune)
        ago = f"Those {last} longer ago: 12h, 30d, 8w."
        click.option("--older-than", type=Span(), metavar="SPAN", help=ago)(prune)
        return prune

    return make
