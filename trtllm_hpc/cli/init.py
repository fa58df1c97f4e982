"""``trtllm-hpc init``: write commented files to start from."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from trtllm_hpc.scheduler.discovery import SlurmFacts


@click.group()
def command() -> None:
    """Write a commented job file or cluster profile to start from.

    \b
    Examples:
      trtllm-hpc init job job.yaml
      trtllm-hpc init job llama.yaml --backend pytorch
      trtllm-hpc init cluster mysite.yaml

    The first line of each file names the JSON Schema of this installation:
    editors with a YAML language server complete and check keys by it.
    'trtllm-hpc schema' prints it, for another machine.
    """


_BACKENDS = {
    "reference": ("reference", "local"),
    "pytorch": ("pytorch", "pyxis"),
    "tensorrtllm": ("tensorrt_llm", "pyxis"),
}
"""For each backend its templates, and a profile that has it."""

_force_option = click.option("--force", is_flag=True, help="Replace FILE if it exists.")


@command.command()
@click.argument("file", type=click.Path(path_type=Path), default=Path("job.yaml"), metavar="[FILE]")
@click.option(
    "--backend",
    type=click.Choice([*_BACKENDS]),
    default="reference",
    show_default=True,
    help="TensorRT-LLM in NVIDIA's container on PyTorch, or with an engine; or the reference backend, "
    "on any machine.",
)
@_force_option
def job(file: Path, backend: str, force: bool) -> None:
    """Write a commented job file.

    FILE defaults to job.yaml. With the reference backend it runs unchanged: a
    small random model over two ranks. For the others set model.path in it.
    A relative model.path or engine.directory is relative to the file's folder.
    """
    from trtllm_hpc.config.files import as_argument

    _refuse_existing(file, force)
    kind, cluster = _BACKENDS[backend]
    _write(file, "job", title=_name_from(file, "my-job"), backend=kind)
    click.echo(f"Wrote {click.format_filename(file)}.")
    click.echo(f"  next: trtllm-hpc render {as_argument(click.format_filename(file))} --cluster {cluster}")


@command.command()
@click.argument("file", type=click.Path(path_type=Path), default=Path("cluster.yaml"), metavar="[FILE]")
@click.option(
    "--from-slurm/--no-slurm",
    default=None,
    help="Query the live Slurm, or leave placeholders.  [default: query it if there is one]",
)
@_force_option
def cluster(file: Path, from_slurm: bool | None, force: bool) -> None:
    """Write a commented cluster profile.

    FILE defaults to cluster.yaml. Partitions, GPUs per node and MPI plugins
    come from sinfo and srun.
    """
    from trtllm_hpc.config.files import as_argument

    _refuse_existing(file, force)
    facts = _facts(from_slurm)
    chosen = facts.chosen if facts is not None else None
    _write(file, "cluster", title=_name_from(file, "my-cluster"), facts=facts, chosen=chosen)
    click.echo(f"Wrote {click.format_filename(file)}.")
    if chosen is not None:
        click.echo(f"  chosen: partition {chosen}")
    click.echo(f"  next: trtllm-hpc render tiny-llama --cluster {as_argument(click.format_filename(file))}")


def _facts(from_slurm: bool | None) -> SlurmFacts | None:
    """Query Slurm; ``None`` with --no-slurm, or if it does not answer and --from-slurm is not given."""
    from trtllm_hpc.errors import SubmissionError
    from trtllm_hpc.scheduler.discovery import query_cluster

    if from_slurm is False:
        return None
    try:
        return query_cluster()
    except SubmissionError as error:
        if from_slurm:
            raise SubmissionError(error.message, hint="trtllm-hpc init cluster --no-slurm") from None
        click.echo(f"Slurm was not queried: {error.message} The profile has placeholders; fill them in.")
        return None


def _name_from(file: Path, otherwise: str) -> str:
    """Return a valid name made from the file's."""
    letters = re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem)
    return letters.strip("-._")[:64] or otherwise


def _refuse_existing(file: Path, force: bool) -> None:
    from trtllm_hpc.errors import ConfigError, Diagnostic

    if not force and os.path.lexists(file):
        hint = f"name another file, or add --force to replace {file}"
        raise ConfigError([Diagnostic("exists", "already exists; it was not changed", str(file), hint=hint)])


def _write(file: Path, kind: str, **values: object) -> None:
    from trtllm_hpc.config.dump import scalar
    from trtllm_hpc.config.schemas import schemas
    from trtllm_hpc.errors import ConfigError, Diagnostic
    from trtllm_hpc.paths import write_text
    from trtllm_hpc.render.environment import render_template

    schema = schemas()[kind].as_uri()
    text = render_template(f"init/{kind}.yaml.j2", yaml=scalar, schema=schema, kind=kind, **values)
    try:
        # The usual mode: the file holds no secret.
        write_text(file, text, mode=0o644)
    except OSError as error:
        message = f"cannot be written: {error.strerror}"
        raise ConfigError([Diagnostic("unwritable", message, str(file))]) from None
