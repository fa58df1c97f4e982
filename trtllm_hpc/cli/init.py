"""``trtllm-hpc init``: write commented files to start from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtllm_hpc.cli.completion import complete_with, job_names
from trtllm_hpc.cli.options import force_option, refuse_existing, save

if TYPE_CHECKING:
    from trtllm_hpc.scheduler.discovery import SlurmFacts


@click.group()
def command() -> None:
    """Write a commented job file or cluster profile to start from.

    \b
    Examples:
      trtllm-hpc init job job.yaml
      trtllm-hpc init job llama.yaml --backend pytorch
      trtllm-hpc init job mine.yaml --from qwen3-8b --model /scratch/models/Qwen3-8B
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


@command.command()
@click.argument("file", type=click.Path(path_type=Path), default=Path("job.yaml"), metavar="[FILE]")
@click.option(
    "--backend",
    type=click.Choice([*_BACKENDS]),
    help="TensorRT-LLM in NVIDIA's container on PyTorch, or with an engine; or the reference backend, "
    "on any machine.  [default: reference]",
)
@click.option(
    "--from",
    "recipe",
    metavar="NAME",
    shell_complete=complete_with(job_names),
    help="Copy a shipped job file with its comments; 'trtllm-hpc jobs list' names them.",
)
@click.option("--name", metavar="NAME", help="Name of the job.  [default: that of FILE]")
@click.option(
    "--model", metavar="FOLDER", help="With --from: the model's folder, as the compute nodes see it."
)
@force_option
def job(
    file: Path, backend: str | None, recipe: str | None, name: str | None, model: str | None, force: bool
) -> None:
    """Write a commented job file.

    FILE defaults to job.yaml. With the reference backend it runs unchanged: a
    small random model over two ranks. For the others set model.path in it.
    A relative model.path or engine.directory is relative to the file's folder.

    \b
    Examples:
      trtllm-hpc init job
      trtllm-hpc init job llama.yaml --backend pytorch
      trtllm-hpc init job mine.yaml --from qwen3-8b --model /scratch/models/Qwen3-8B
    """
    from trtllm_hpc.config.files import as_argument

    title = name or _name_from(file, "my-job")
    if recipe is not None:
        if backend is not None:
            raise click.UsageError("Choose --from or --backend: a shipped job file has its backend.")
        cluster = _copy(recipe, file, title, model, force)
    else:
        if model is not None:
            raise click.UsageError("--model needs --from. Without it, set model.path in the file.")
        refuse_existing(file, force)
        kind, cluster = _BACKENDS[backend or "reference"]
        _write(file, "job", title=title, backend=kind)
    click.echo(f"Wrote {click.format_filename(file)}.")
    click.echo(f"  next: trtllm-hpc render {as_argument(click.format_filename(file))} --cluster {cluster}")


def _copy(recipe: str, file: Path, title: str, model: str | None, force: bool) -> str:
    """Write a copy of a shipped job file; returns a profile to try it with."""
    from trtllm_hpc.cli.jobs import shipped_or_refused
    from trtllm_hpc.runs.shipped_jobs import copy_of, shipped_jobs

    shipped_or_refused(recipe, "--from")
    text = copy_of(recipe, title, model)
    refuse_existing(file, force)
    _write_text(file, text, "job")
    shipped = next(job for job in shipped_jobs() if job.name == recipe)
    return "local" if not shipped.gpus else "pyxis"


@command.command()
@click.argument("file", type=click.Path(path_type=Path), default=Path("cluster.yaml"), metavar="[FILE]")
@click.option(
    "--from-slurm/--no-slurm",
    default=None,
    help="Query the live Slurm, or leave placeholders.  [default: query it if there is one]",
)
@force_option
def cluster(file: Path, from_slurm: bool | None, force: bool) -> None:
    """Write a commented cluster profile.

    FILE defaults to cluster.yaml. Partitions, GPUs per node, MPI plugins and
    pyxis come from sinfo and srun. With pyxis the image is NVIDIA's, of the
    release that a job file names.

    \b
    Example:
      trtllm-hpc init cluster mysite.yaml
    """
    from trtllm_hpc.config.files import as_argument

    refuse_existing(file, force)
    facts = _facts(from_slurm)
    chosen = facts.chosen if facts is not None else None
    _write(file, "cluster", title=_name_from(file, "my-cluster"), facts=facts, chosen=chosen)
    click.echo(f"Wrote {click.format_filename(file)}.")
    if chosen is not None:
        click.echo(f"  chosen: partition {chosen}")
    # A shipped job that fits the profile: NVIDIA's image has no reference backend.
    job = "qwen3-8b" if facts is not None and facts.has_pyxis else "tiny-llama"
    click.echo(f"  next: trtllm-hpc render {job} --cluster {as_argument(click.format_filename(file))}")


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


def _write(file: Path, kind: str, **values: object) -> None:
    from trtllm_hpc.config.dump import scalar
    from trtllm_hpc.config.schemas import schemas
    from trtllm_hpc.render.environment import render_template

    schema = schemas()[kind].as_uri()
    text = render_template(f"init/{kind}.yaml.j2", yaml=scalar, schema=schema, kind=kind, **values)
    save(file, text)


def _write_text(file: Path, text: str, kind: str) -> None:
    """Write a text below the line that names its schema."""
    from trtllm_hpc.config.schemas import schemas
    from trtllm_hpc.render.environment import render_template

    head = render_template("init/_schema.j2", schema=schemas()[kind].as_uri(), kind=kind)
    save(file, f"{head.rstrip()}\n\n{text}")
