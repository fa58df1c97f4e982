"""Files to start from: ``init`` writes them, ``jobs`` and ``schema`` show what is shipped."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtllm_hpc.cli.shared import (
    complete_with,
    job_names,
    json_option,
    print_listing,
    refuse_existing,
    save_new,
)

if TYPE_CHECKING:
    from trtllm_hpc.runs.job_files import Goal, ShippedJob
    from trtllm_hpc.scheduler.discovery import Partition, SlurmFacts

NAMES = ("job", "cluster", "lock", "output")


def schema_file(name: str) -> Path:
    """Return the shipped file ``NAME.schema.json``."""
    return Path(str(resources.files("trtllm_hpc.templates"))) / "schemas" / f"{name}.schema.json"


def schema(name: str) -> dict[str, Any]:
    """Return a schema of :data:`NAMES` that needs no other file."""
    text = schema_file(name).read_text(encoding="utf-8")
    if name != "cluster":
        return dict(json.loads(text))
    whole = json.loads(text.replace("job.schema.json#", "#"))  # its job_defaults are a job file's
    return {**whole, "$defs": {**whole["$defs"], **schema("job")["$defs"]}}


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
@click.option(
    "--model",
    metavar="FOLDER",
    help="The model's folder, as the compute nodes see it; with --from, also ORG/NAME of the Hub.",
)
@click.option(
    "--gpu",
    metavar="KIND",
    help="Read the checkpoint in --model, and find settings for it on this kind of GPU, such as h200.",
)
@click.option(
    "--goal",
    type=click.Choice(["latency", "throughput"]),
    help="With --gpu: quick answers for a few users, or many at once.  [default: throughput]",
)
def job(
    file: Path, backend: str | None, recipe: str | None, model: str | None, gpu: str | None, goal: Goal | None
) -> None:
    """Write a commented job file.

    FILE defaults to job.yaml. With the reference backend it runs unchanged: a
    small random model over two ranks. For the others set model.path in it.
    A relative model.path or engine.directory is relative to the file's folder.

    With --gpu the nearest shipped job file for the checkpoint is taken; without
    one, the memory planner finds the fewest GPUs. Comments say which values are
    ours.

    \b
    Examples:
      trtllm-hpc init job
      trtllm-hpc init job llama.yaml --backend pytorch
      trtllm-hpc init job r1.yaml --model /scratch/models/DeepSeek-R1-0528 --gpu h200 --goal latency
      trtllm-hpc init job mine.yaml --from qwen3-8b --model /scratch/models/Qwen3-8B
    """
    from trtllm_hpc.config.files import as_argument
    from trtllm_hpc.config.hub import HUB_NAME
    from trtllm_hpc.runs.job_files import copy_of, described

    if sum(it is not None for it in (recipe, backend, gpu)) > 1:
        raise click.UsageError("Choose one of --backend, --from and --gpu.")
    of_hub = model is not None and HUB_NAME.fullmatch(model) and not (file.parent / model).exists()
    if of_hub and recipe is None:
        raise click.UsageError(
            f"There is no folder {model}. Of the Hub's model, 'trtllm-hpc models fetch {model}' prints the "
            f"folder to name; or leave --model out, and submit with --set model.hub={model}."
        )
    if model is not None and recipe is None and gpu is None:
        raise click.UsageError("--model needs --gpu or --from; else edit the file.")
    if (goal or gpu) and not (model and gpu):
        raise click.UsageError("--gpu needs --model, and --goal needs both.")
    refuse_existing(file)
    title, notes = _name_from(file, "my-job"), list[str]()
    template, cluster = _BACKENDS[backend or "reference"]
    first = f"{_rendered('_schema.j2', 'job').rstrip()}\n\n"
    if recipe is not None:
        shipped = described(recipe, _shipped(recipe, "--from"))
        text = first + copy_of(recipe, title, model, "hub" if of_hub else "path")
        cluster = "pyxis" if shipped.gpus else "local"
        notes += [f"model.hub is {model}: there is no folder of this name."] if of_hub else []
    elif model is not None and gpu is not None:
        from trtllm_hpc.config.cluster import gpus
        from trtllm_hpc.runs.job_files import fitting_job

        if gpu not in gpus():
            raise click.BadParameter(f"there is no {gpu!r}, only {', '.join(gpus())}.", param_hint="--gpu")
        fitting, notes = fitting_job(file.parent / model, title, model, gpu, goal or "throughput")
        text, cluster = first + fitting, "pyxis"
    else:
        text = _rendered("job.yaml.j2", "job", title=title, backend=template)
    save_new(file, text)
    before = ""
    if cluster == "local" and shutil.which("sinfo"):
        before, cluster = "trtllm-hpc init cluster mysite.yaml, then ", "./mysite.yaml"
    written = click.format_filename(file)
    click.echo("\n  ".join([f"Wrote {written}.", *notes]))
    click.echo(f"  next: {before}trtllm-hpc render {as_argument(written)} --cluster {cluster}")


def _name_from(file: Path, otherwise: str) -> str:
    """Return a valid name made from the file's."""
    letters = re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem)
    return letters.strip("-._")[:64] or otherwise


def _rendered(template: str, kind: str, **values: object) -> str:
    from trtllm_hpc.config.dump import scalar
    from trtllm_hpc.render.environment import render_template

    schema = schema_file(kind).as_uri()
    return render_template(f"init/{template}", yaml=scalar, schema=schema, kind=kind, **values)


@command.command()
@click.argument("file", type=click.Path(path_type=Path), default=Path("cluster.yaml"), metavar="[FILE]")
@click.option("--partition", metavar="NAME", help="Slurm's partition for servers; sinfo lists them.")
def cluster(file: Path, partition: str | None) -> None:
    """Write a commented cluster profile.

    FILE defaults to cluster.yaml. Partitions, GPUs per node, MPI plugins and
    pyxis come from sinfo and srun; without Slurm the file has placeholders. With
    pyxis the image is NVIDIA's, of the release that a job file names. Where several
    partitions have GPUs, the terminal asks which to take.

    \b
    Examples:
      trtllm-hpc init cluster mysite.yaml
      trtllm-hpc init cluster mysite.yaml --partition gpu
    """
    from trtllm_hpc.config.files import as_argument
    from trtllm_hpc.errors import SubmissionError
    from trtllm_hpc.runtime.servers.triton import only_wheel_has_server
    from trtllm_hpc.scheduler.discovery import query_cluster

    refuse_existing(file)
    facts = None
    try:
        facts = query_cluster()
    except SubmissionError as error:
        click.echo(f"Slurm was not queried: {error.message} The profile has placeholders; fill them in.")
    chosen, why = _chosen(facts, partition) if facts is not None else (None, "")
    wheel = facts is not None and not facts.has_pyxis and only_wheel_has_server()
    title = _name_from(file, "my-cluster")
    text = _rendered("cluster.yaml.j2", "cluster", title=title, facts=facts, chosen=chosen, wheel=wheel)
    save_new(file, text)
    written = click.format_filename(file)
    click.echo(f"Wrote {written}.")
    if chosen is not None:
        click.echo(f"  chosen: partition {chosen}{why}")
        if chosen.hides_gpus:
            click.echo("  sinfo shows no GPUs of it: if it has some, set gpus_per_node and gpu_request: none")
    if wheel:
        click.echo("  chosen: Triton server of the nvidia-pytriton wheel; there is no tritonserver on PATH")
    # A shipped job that fits the profile: NVIDIA's image has no reference backend.
    job = "qwen3-8b" if facts is not None and facts.has_pyxis else "tiny-llama"
    click.echo(f"  next: trtllm-hpc doctor {job} --cluster {as_argument(written)}")


def _chosen(facts: SlurmFacts, name: str | None) -> tuple[Partition | None, str]:
    """Return the partition to use, and why where others fit too; raises BadParameter if it is not there."""
    candidates, why = facts.candidates, ""
    if name is None and len(candidates) > 1 and facts.chosen is not None:
        if sys.stdin.isatty():
            name = click.prompt("Partition for servers", facts.chosen.name, type=click.Choice(candidates))
        else:
            first = "the default" if facts.chosen.is_default else "the first"
            why = f"\n    {first} of {', '.join(candidates)}, which all fit; --partition NAME takes another"
    if name is None:
        return facts.chosen, why
    if not (found := [it for it in facts.partitions if it.name == name]):
        names = ", ".join(dict.fromkeys(it.name for it in facts.partitions)) or "none"
        raise click.BadParameter(f"there is no {name!r}; sinfo lists {names}.", param_hint="--partition")
    return min(found, key=lambda it: it.rank), why


@click.group("jobs")
def jobs_command() -> None:
    """List the shipped job files, and print one to start from.

    \b
    Examples:
      trtllm-hpc jobs list
      trtllm-hpc jobs show qwen3-8b
      trtllm-hpc init job mine.yaml --from qwen3-8b --model /scratch/models/Qwen3-8B
      trtllm-hpc submit tiny-llama --cluster sandbox
    """


@jobs_command.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the shipped job files and what each is for."""
    from trtllm_hpc.report.formatting import NONE
    from trtllm_hpc.report.tables import terminal_width
    from trtllm_hpc.runs.job_files import shipped_jobs

    columns: dict[str, Callable[[ShippedJob], str]] = {
        "name": lambda job: job.name,
        "model": lambda job: job.model,
        "backend": lambda job: job.backend,
        "nodes": lambda job: str(job.nodes),
        "GPUs": lambda job: " ".join(filter(None, (str(job.gpus or NONE), job.gpu_types))),
        "release": lambda job: job.release or NONE,
        "ranks": lambda job: str(job.ranks),
        "what it shows": lambda job: job.summary,
    }
    first = ["name", "model"]
    if terminal_width() is not None:  # into a pipe each job is one line
        del columns["name"], columns["model"]
        first = ["name\n  model"]
        columns = {first[0]: lambda job: f"{job.name}\n  {job.model}", **columns}
    print_listing(
        shipped_jobs(),
        columns,
        as_json=as_json,
        right=("ranks", "nodes"),
        one_line=first,
        optional=("backend", "nodes", "GPUs", "what it shows", "release", "ranks"),
    )


@jobs_command.command()
@click.argument("job", metavar="JOB", shell_complete=complete_with(job_names))
def show(job: str) -> None:
    """Print the shipped job file JOB with its comments.

    \b
    Example:
      trtllm-hpc jobs show qwen3-8b
    """
    click.echo(_shipped(job, "JOB").read_text(encoding="utf-8"), nl=False)


def _shipped(name: str, parameter: str) -> Path:
    """Return the shipped job file of that name. Raises click.BadParameter if there is none."""
    from trtllm_hpc.config.files import jobs

    file = jobs().get(name)
    if file is None:
        message = f"no shipped job file is called {name!r}; there are {', '.join(jobs())}."
        raise click.BadParameter(message, param_hint=parameter)
    return file


@click.command("schema")
@click.argument("name", type=click.Choice(NAMES))
def schema_command(name: str) -> None:
    """Print the JSON Schema NAME.

    'job' and 'cluster' are those of job files and cluster profiles, for editors.
    An editor with a YAML language server uses a copy beside a file that begins with
    '# yaml-language-server: $schema=job.schema.json'. 'lock' is that of lock.json,
    and 'output' has what each command prints with --json, under 'commands'.

    \b
    Examples:
      trtllm-hpc schema job > job.schema.json
    """
    click.echo(json.dumps(schema(name), indent=1, ensure_ascii=False))
