"""``trtllm-hpc jobs list|show``: the shipped job files."""

from __future__ import annotations

from pathlib import Path

import click

from trtllm_hpc.cli.completion import complete_with, job_names
from trtllm_hpc.cli.options import json_option, print_json
from trtllm_hpc.report.tables import Table, print_table


@click.group()
def command() -> None:
    """List the shipped job files, and print one to start from.

    \b
    Examples:
      trtllm-hpc jobs list
      trtllm-hpc jobs show qwen3-8b
      trtllm-hpc init job mine.yaml --from qwen3-8b --model /scratch/models/Qwen3-8B
      trtllm-hpc submit tiny-llama --cluster sandbox
    """


@command.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the shipped job files and what each is for."""
    from trtllm_hpc.runs.shipped_jobs import shipped_jobs

    jobs = shipped_jobs()
    if as_json:
        print_json(jobs)
        return

    table = Table(
        *("name", "model", "backend", "release", "ranks", "nodes", "GPUs", "what it shows"),
        right=("ranks", "nodes"),
        one_line=("name",),
        least={"what it shows": 22},
        optional=("GPUs", "release", "nodes", "ranks", "model", "backend"),
    )
    for job in jobs:
        gpus = " ".join(word for word in (str(job.gpus or "-"), job.gpu_types) if word)
        table.add_row(
            *(job.name, job.model, job.backend, job.release or "-", str(job.ranks), str(job.nodes), gpus),
            job.summary,
        )
    print_table(table)


@command.command()
@click.argument("name", shell_complete=complete_with(job_names))
@json_option
def show(name: str, as_json: bool) -> None:
    """Print the shipped job file NAME with its comments."""
    from trtllm_hpc.runs.shipped_jobs import ShippedText, shipped_jobs

    text = shipped_or_refused(name, "NAME").read_text(encoding="utf-8")
    if not as_json:
        click.echo(text, nl=False)
        return
    job = next(job for job in shipped_jobs() if job.name == name)
    print_json(ShippedText(**vars(job), text=text))


def shipped_or_refused(name: str, parameter: str) -> Path:
    """Return the shipped job file of that name. Raises click.BadParameter if there is none."""
    from trtllm_hpc.config.files import jobs

    file = jobs().get(name)
    if file is None:
        message = f"no shipped job file is called {name!r}; there are {', '.join(jobs())}."
        raise click.BadParameter(message, param_hint=parameter)
    return file
