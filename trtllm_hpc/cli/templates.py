"""``trtllm-hpc templates fetch|show``: upstream's model templates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtllm_hpc.cli.options import (
    EXISTING_FOLDER,
    cluster_option,
    job_options,
    print_warning,
    set_option,
)

if TYPE_CHECKING:
    from trtllm_hpc.config.cluster import ClusterProfile
    from trtllm_hpc.render.templates_cache import KeptTemplates


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
def fetch(cluster: str, settings: tuple[str, ...], source: Path | None) -> None:
    """Fetch the model templates from the profile's image to this machine.

    Without --from one Slurm task prints them inside the container.
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
        archive, origin = extract_templates(profile, profile_name=cluster)
        kept = keep_archive(profile, archive, origin)
    if warning := _release_warning(profile, kept):
        print_warning(warning)
    click.echo(f"kept {len(kept.models)} templates of {kept.image} (from {kept.origin})")
    click.echo(f"  {kept.all_models}")


def _release_warning(profile: ClusterProfile, kept: KeptTemplates) -> str | None:
    """Return a warning with the differences if the placeholders are not those of the profile's release."""
    from trtllm_hpc.tensorrt_llm.releases.placeholders import differences
    from trtllm_hpc.tensorrt_llm.releases.release import UnknownRelease, find_release, fitting_releases

    stated, placeholders = profile.container.tensorrt_llm_version, kept.placeholders()
    try:
        release = find_release(None if stated else profile.container.image, stated).version
    except UnknownRelease:
        return None
    found = differences(release, placeholders)
    if not found:
        return None
    fitting = fitting_releases(placeholders)
    span = " to ".join(dict.fromkeys((fitting[0], fitting[-1]))) if fitting else "no release known here"
    lines = [
        f"warning: these templates are not those of TensorRT-LLM {release}; they look like those of {span}",
        *(f"  {line}" for line in found),
        f"  next: trtllm-hpc templates fetch, with --from a checkout of {release} or from the image",
    ]
    return "\n".join(lines)


@command.command()
@job_options
@click.argument("model", required=False)
def show(
    job_file: Path, cluster: str, settings: tuple[str, ...], runs: Path | None, model: str | None
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
    for name, text in chosen.items():
        if model is None:
            click.echo(f"# ---- {name}/config.pbtxt")
        click.echo(text, nl=not text.endswith("\n"))
