"""``trtllm-hpc init``, ``jobs`` and ``schema``: files to start from."""

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
    print_note,
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
    """Return a schema of :data:`NAMES` as one self-contained document."""
    text = schema_file(name).read_text(encoding="utf-8")
    if name != "cluster":
        return dict(json.loads(text))
    whole = json.loads(text.replace("job.schema.json#", "#"))  # job_defaults refers to the job schema
    return {**whole, "$defs": {**whole["$defs"], **schema("job")["$defs"]}}


@click.group()
def command() -> None:
    """Write a commented job file or cluster profile to start from.

    The first line of each file names its JSON Schema, with which editors complete
    and check keys.

    \b
    Examples:
      trtllm-hpc init job chat.yaml --from qwen3-8b --model ~/models/Qwen3-8B
      trtllm-hpc init cluster mysite.yaml
    """


_BACKENDS = {
    "reference": ("reference", "local"),
    "pytorch": ("pytorch", "pyxis"),
    "tensorrtllm": ("tensorrt_llm", "pyxis"),
}
"""The template of each backend, and a profile for it."""


@command.command()
@click.argument("file", type=click.Path(path_type=Path), default=Path("job.yaml"), metavar="[FILE]")
@click.option(
    "--backend",
    type=click.Choice([*_BACKENDS]),
    metavar="NAME",
    help="pytorch or tensorrtllm: NVIDIA's container, with PyTorch or a built engine; reference: any machine."
    "  [default: reference]",
)
@click.option(
    "--from",
    "recipe",
    metavar="NAME",
    shell_complete=complete_with(job_names),
    help="Copy a shipped job file. 'trtllm-hpc jobs list' lists them.",
)
@click.option(
    "--model",
    metavar="FOLDER",
    help="Folder of the model on the compute nodes; with --from also ORG/NAME of a hub.",
)
@click.option(
    "--gpu",
    metavar="KIND",
    help="Choose settings for --model on this kind of GPU, e.g. h200.",
)
@click.option(
    "--goal",
    type=click.Choice(["latency", "throughput"]),
    help="With --gpu: short answer times, or many users.  [default: throughput]",
)
def job(
    file: Path, backend: str | None, recipe: str | None, model: str | None, gpu: str | None, goal: Goal | None
) -> None:
    """Write a commented job file. FILE is job.yaml by default.

    The default file serves a small random model over two ranks, on any machine. For
    another backend set model.path in the file.

    --gpu starts from the nearest shipped job file for the checkpoint, or from the
    fewest GPUs whose memory suffices.

    \b
    Examples:
      trtllm-hpc init job
      trtllm-hpc init job chat.yaml --from qwen3-8b --model ~/models/Qwen3-8B
      trtllm-hpc init job r1.yaml --model ~/models/DeepSeek-R1-0528 --gpu h200 --goal latency
    """
    from trtllm_hpc.config.files import as_argument
    from trtllm_hpc.config.hub import HUB_NAME
    from trtllm_hpc.runs.job_files import copy_of, described

    if sum(option is not None for option in (recipe, backend, gpu)) > 1:
        raise click.UsageError("Choose one of --backend, --from and --gpu.")
    of_hub = model is not None and HUB_NAME.fullmatch(model) and not (file.parent / model).exists()
    if of_hub and recipe is None:
        raise click.UsageError(
            f"There is no folder {model}. To use the Hub's model, name the folder that "
            f"'trtllm-hpc models fetch {model}' prints; or submit with --set model.hub={model}."
        )
    if model is not None and recipe is None and gpu is None:
        raise click.UsageError("--model needs --gpu or --from. Without them, set model.path in the file.")
    if (goal or gpu) and not (model and gpu):
        raise click.UsageError("--gpu needs --model, and --goal needs --gpu.")
    refuse_existing(file)
    title, notes = _name_from(file, "my-job"), list[str]()
    template, cluster = _BACKENDS[backend or "reference"]
    first = f"{_rendered('_schema.j2', 'job').rstrip()}\n\n"
    if recipe is not None:
        shipped = described(recipe, _shipped(recipe, "--from"))
        text = first + copy_of(recipe, title, model, "hub" if of_hub else "path")
        cluster = "pyxis" if shipped.gpus else "local"
        notes += [f"model.hub is {model}, because no folder has this name."] if of_hub else []
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
    advice = f"  next: {before}trtllm-hpc render {as_argument(written)} --cluster {cluster}"
    print_note(advice, err=False)


def _name_from(file: Path, otherwise: str) -> str:
    """Return a valid name of a job or a cluster, made from the file name."""
    letters = re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem)
    return letters.strip("-._")[:64] or otherwise


def _rendered(template: str, kind: str, **values: object) -> str:
    from trtllm_hpc.config.dump import scalar
    from trtllm_hpc.render.environment import render_template

    schema = schema_file(kind).as_uri()
    return render_template(f"init/{template}", yaml=scalar, schema=schema, kind=kind, **values)


@command.command()
@click.argument("file", type=click.Path(path_type=Path), default=Path("cluster.yaml"), metavar="[FILE]")
@click.option("--partition", metavar="NAME", help="Slurm partition for servers.")
def cluster(file: Path, partition: str | None) -> None:
    """Write a commented cluster profile. FILE is cluster.yaml by default.

    Partitions, GPUs per node, MPI plugins and pyxis come from sinfo and srun. Without
    Slurm the file has placeholders.

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
        click.echo(f"Slurm was not queried: {error.message} Fill in the placeholders of the profile.")
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
            click.echo("  sinfo shows no GPUs in it: if it has GPUs, set gpus_per_node and gpu_request: none")
    if wheel:
        click.echo("  chosen: Triton server of the nvidia-pytriton wheel, as PATH has no tritonserver")
    # A shipped job that fits the profile: NVIDIA's image cannot run the reference backend.
    job = "qwen3-8b" if facts is not None and facts.has_pyxis else "tiny-llama"
    print_note(f"  next: trtllm-hpc doctor {job} --cluster {as_argument(written)}", err=False)


def _chosen(facts: SlurmFacts, name: str | None) -> tuple[Partition | None, str]:
    """Return the partition to use, and the reason if several fit. Raises BadParameter for an unknown name."""
    candidates, why = facts.candidates, ""
    if name is None and len(candidates) > 1 and facts.chosen is not None:
        if sys.stdin.isatty():
            name = click.prompt("Partition for servers", facts.chosen.name, type=click.Choice(candidates))
        else:
            first = "the default" if facts.chosen.is_default else "the first"
            why = f"\n    {first} of {', '.join(candidates)}, which all fit; --partition NAME chooses another"
    if name is None:
        return facts.chosen, why
    if not (found := [partition for partition in facts.partitions if partition.name == name]):
        names = ", ".join(dict.fromkeys(partition.name for partition in facts.partitions)) or "none"
        raise click.BadParameter(f"there is no {name!r}; sinfo lists {names}.", param_hint="--partition")
    return min(found, key=lambda partition: partition.rank), why


@click.group("jobs")
def jobs_command() -> None:
    """List and print the shipped job files.

    \b
    Examples:
      trtllm-hpc jobs list
      trtllm-hpc jobs show qwen3-8b
      trtllm-hpc submit tiny-llama --cluster sandbox
    """


@jobs_command.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the shipped job files and their purposes."""
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
    if terminal_width() is not None:  # in a pipe each job is one line
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
    """Print the shipped job file JOB with its comments."""
    click.echo(_shipped(job, "JOB").read_text(encoding="utf-8"), nl=False)


def _shipped(name: str, parameter: str) -> Path:
    """Return the shipped job file with a name. Raises click.BadParameter for an unknown name."""
    from trtllm_hpc.config.diagnostics import nearest
    from trtllm_hpc.config.files import jobs

    file = jobs().get(name)
    if file is None:
        near = nearest(name, jobs(), 0.5)
        guess = f"did you mean {near}?" if near else "'trtllm-hpc jobs list' lists them."
        raise click.BadParameter(f"no shipped job file is called {name!r}; {guess}", param_hint=parameter)
    return file


@click.command("schema")
@click.argument("name", type=click.Choice(NAMES))
def schema_command(name: str) -> None:
    """Print a JSON Schema.

    \b
    The schemas:
      job      job files
      cluster  cluster profiles
      lock     lock.json of a run
      output   what each command prints with --json, under 'commands'

    An editor with a YAML language server uses the schema if the file begins with
    '# yaml-language-server: $schema=job.schema.json'.

    \b
    Examples:
      trtllm-hpc schema job > job.schema.json
    """
    click.echo(json.dumps(schema(name), indent=1, ensure_ascii=False))
