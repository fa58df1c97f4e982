"""``trtllm-hpc templates fetch|show``: upstream's model templates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtllm_hpc.cli.options import (
    EXISTING_FOLDER,
    Time,
    cluster_option,
    job_options,
    json_option,
    print_json,
    set_option,
)

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class FetchedTemplates:
    """The templates of one image."""

    image: str
    origin: str
    """Where they were taken from: a folder in the image, or on this machine."""
    fetched: str
    """Date and time, UTC."""
    folder: str
    """Where they are kept."""
    models: tuple[str, ...]
    """``<group>/<model>`` of each."""


@click.group()
def command() -> None:
    """Fetch an image's model templates; show a job's finished config.pbtxt.

    With an image's templates on this machine, 'submit' renders and checks the
    whole model repository before anything is queued. Without them the job does
    so as its first step.

    \b
      trtllm-hpc templates fetch --cluster ./mysite.yaml
      trtllm-hpc templates show job.yaml --cluster ./mysite.yaml tensorrt_llm
    """


@command.command()
@cluster_option
@set_option
@click.option(
    "--from",
    "source",
    type=EXISTING_FOLDER,
    metavar="FOLDER",
    help="Copy them from a folder: all_models, or a checkout of upstream's repository.",
)
@click.option("--here", is_flag=True, help="Run the image on this machine (apptainer, enroot, docker).")
@click.option(
    "--wait-minutes",
    type=Time(60, 0.01),
    default=60.0,
    show_default=True,
    help="Give up after this time, including the wait in the queue.",
)
@json_option
def fetch(
    cluster: str,
    settings: tuple[str, ...],
    source: Path | None,
    here: bool,
    wait_minutes: float,
    as_json: bool,
) -> None:
    """Fetch the model templates from the profile's image to this machine.

    Without options one Slurm task prints them inside the container.
    """
    from trtllm_hpc.render.templates_cache import keep_archive, keep_folder
    from trtllm_hpc.validation.load import load_cluster

    profile = load_cluster(cluster, settings)
    if source is not None:
        kept = keep_folder(profile, source.absolute())
    else:
        from trtllm_hpc.runs.templates import extract_templates

        image = profile.container.image or "the node's own files"
        click.echo(f"copying the templates out of {image} ...", err=True)
        archive, origin = extract_templates(
            profile, here=here, wait_s=wait_minutes * 60, profile_name=cluster
        )
        kept = keep_archive(profile, archive, origin)
    if as_json:
        folder = str(kept.all_models)
        print_json(FetchedTemplates(kept.image, kept.origin, kept.fetched, folder, tuple(kept.models)))
        return
    click.echo(f"kept {len(kept.models)} templates of {kept.image} (from {kept.origin})")
    click.echo(f"  {kept.all_models}")


@command.command()
@job_options
@click.argument("model", required=False)
@json_option
def show(
    job_file: Path,
    cluster: str,
    settings: tuple[str, ...],
    runs: Path | None,
    model: str | None,
    as_json: bool,
) -> None:
    """Print the finished config.pbtxt files of JOB, or only that of MODEL.

    They are those that `submit` would write, checked against Triton's own
    schema. Nothing is submitted.
    """
    from trtllm_hpc.runs.create import JobSource, plan_run
    from trtllm_hpc.runs.templates import finished_configs

    with plan_run(JobSource(job_file, cluster, settings, runs), command="templates show") as plan:
        texts = finished_configs(plan, cluster)
    if model is not None and model not in texts:
        raise click.BadParameter(f"{model!r} is none of {', '.join(texts)}.", param_hint="MODEL")
    chosen = texts if model is None else {model: texts[model]}
    if as_json:
        print_json(chosen)
        return
    for name, text in chosen.items():
        if model is None:
            click.echo(f"# ---- {name}/config.pbtxt")
        click.echo(text, nl=not text.endswith("\n"))
