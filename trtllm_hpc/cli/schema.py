"""``trtllm-hpc schema``: the JSON Schemas of the two files and of what commands print with ``--json``."""

from __future__ import annotations

import click

from trtllm_hpc.cli.completion import complete_with
from trtllm_hpc.config.schemas import RENAMED, schemas


@click.command("schema")
@click.argument("words", nargs=-1, metavar="[NAME]...", shell_complete=complete_with(lambda _: [*schemas()]))
@click.option(
    "--renamed", is_flag=True, help="Print the keys of job files that have new names: old, tab, new."
)
def command(words: tuple[str, ...], renamed: bool) -> None:
    """Print the JSON Schema NAME; without NAME, list them.

    'job' and 'cluster' are those of job files and cluster profiles, for editors.
    An editor with a YAML language server uses a copy beside a file that begins with
    '# yaml-language-server: $schema=job.schema.json'. The others are those of what
    commands print with --json; NAME is then the command.

    \b
    Examples:
      trtllm-hpc schema job > job.schema.json
      trtllm-hpc schema bench compare
      trtllm-hpc schema --renamed
    """
    if renamed:
        click.echo("\n".join(f"{old}\t{new}" for old, new in RENAMED.items()))
        return
    known, name = schemas(), "-".join(words)
    if not words:
        click.echo("\n".join(known))
        return
    if name not in known:
        raise click.BadParameter(f"there is no {name!r}, only {', '.join(known)}.", param_hint="NAME")
    click.echo(known[name].read_text(encoding="utf-8"), nl=False)
