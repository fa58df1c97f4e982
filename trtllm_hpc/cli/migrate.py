"""``trtllm-hpc migrate``: a job with an engine as one for the LLM API on PyTorch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtllm_hpc.cli.completion import complete_with, job_names
from trtllm_hpc.cli.options import force_option, json_option, print_json, refuse_existing, save

if TYPE_CHECKING:
    from trtllm_hpc.engines.migration import Migrated


@click.command()
@click.argument(
    "job", type=click.Path(path_type=Path), metavar="JOB", shell_complete=complete_with(job_names)
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the new job file here, and the list to standard output.  "
    "[default: the job file to standard output, the list to standard error]",
)
@force_option
@json_option
def command(job: Path, output: Path | None, force: bool, as_json: bool) -> None:
    """Rewrite a job with an engine for the LLM API on PyTorch.

    Engines ended with TensorRT-LLM 1.2.1. The new job file has engine.backend:
    pytorch and keeps every comment. The list says which keys are written in
    another way, which have nothing to decide any more, and which asked for
    something that the PyTorch path does not have, with what to do instead.
    JOB itself is not changed. Whether the PyTorch backend has the model is not
    known here: see "Supported Models" in TensorRT-LLM's documentation.

    \b
    Examples:
      trtllm-hpc migrate job.yaml --output pytorch.yaml
      trtllm-hpc migrate readme-llama3-70b-tp4-pp2 > llama.yaml
    """
    migrated = _migrated(job)
    if output is not None:
        refuse_existing(output, force)
        save(output, migrated.text)
    if as_json:
        print_json(replace(migrated, output=str(output) if output is not None else None))
        return
    if output is None:
        click.echo(migrated.text, nl=False)
    _print_changes(migrated, to_stderr=output is None)
    if output is not None:
        from trtllm_hpc.config.files import as_argument

        click.echo(f"Wrote {click.format_filename(output)}.")
        click.echo(f"  next: trtllm-hpc render {as_argument(click.format_filename(output))} --cluster pyxis")


def _migrated(job: Path) -> Migrated:
    """Read a job file, and rewrite it. Raises ConfigError if it is wrong, or has no engine."""
    from trtllm_hpc.config.files import find_job, read_whole
    from trtllm_hpc.config.job import JobFile
    from trtllm_hpc.engines.migration import AlreadyMigrated, migrate
    from trtllm_hpc.errors import ConfigError, Diagnostic

    file = find_job(job)
    read = read_whole(JobFile, file, "job file")
    try:
        return migrate(file.read_text(encoding="utf-8-sig"), read)
    except AlreadyMigrated as error:
        message = f"the backend {error} has no engine of TensorRT-LLM, so there is nothing to migrate"
        raise ConfigError([Diagnostic("conflict", message, str(file), "engine.backend")]) from None


_TITLES = {
    "lost": "Without a counterpart: decide what to do",
    "changed": "Written in another way",
    "dropped": "Left out: nothing to decide any more",
}


def _print_changes(migrated: Migrated, to_stderr: bool) -> None:
    for kind, title in _TITLES.items():
        changes = [change for change in migrated.changes if change.kind == kind]
        if not changes:
            continue
        click.echo(f"{title}:", err=to_stderr)
        for change in changes:
            what = (
                f"{change.key} -> {change.now} ({change.why})"
                if change.now
                else f"{change.key}: {change.why}"
            )
            click.echo(f"  {what}", err=to_stderr)
            if change.instead:
                click.echo(f"    instead: {change.instead}", err=to_stderr)
