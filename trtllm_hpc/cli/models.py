"""``trtllm-hpc models``: fetch, list and prune models of a hub, and small models for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from trtllm_hpc.cli.shared import cluster_option, json_option, print_listing, print_note, pruning
from trtllm_hpc.config.hub import models_folder
from trtllm_hpc.report.formatting import NONE, format_bytes, format_time
from trtllm_hpc.runs import fetched_models, hub
from trtllm_hpc.runs.fetched_models import MODELS, default_folder, is_fetched
from trtllm_hpc.runs.hub import ModelRow
from trtllm_hpc.runs.prune import Pruned, prune_models
from trtllm_hpc.validation.load import load_cluster


@click.group()
def command() -> None:
    """Fetch, list and prune models of a hub, and small models for tests.

    Folder of the hub's models: models_folder of the profile, $TRTLLM_HPC_MODELS, or
    'models' beside the folder of runs.

    \b
    Examples:
      trtllm-hpc models list
      trtllm-hpc models fetch Qwen/Qwen3-8B --cluster mysite
      trtllm-hpc models prune --older-than 30d
      trtllm-hpc models fetch smollm2
      trtllm-hpc submit smollm2 --cluster sandbox --wait
    """


def _folder(cluster: str) -> Path:
    profile = load_cluster(cluster)
    return models_folder(profile.models_folder, hub.runs_folder(profile))


@command.command("list")
@cluster_option
@json_option
def list_(cluster: str, as_json: bool) -> None:
    """List the models with size, last use, and the runs that use them."""
    small = [(name, model, default_folder(name)) for name, model in MODELS.items()]
    rows = [
        ModelRow(name, model.summary, model.licence, str(path), is_fetched(path))
        for name, model, path in small
    ]
    print_listing(
        [*rows, *hub.hub_rows(_folder(cluster))],
        {
            "name": lambda row: row.name,
            "fetched": lambda row: "yes" if row.fetched else "in part" if row.bytes else "no",
            "size": lambda row: format_bytes(row.bytes) if row.bytes else NONE,
            "last used": lambda row: format_time(row.last_used),
            "runs": lambda row: ", ".join(Path(run).name for run in row.runs) or NONE,
            "licence": lambda row: row.licence or NONE,
            "what it is": lambda row: row.summary,
        },
        as_json=as_json,
        right=("size",),
        one_line=("name", "size", "last used"),
    )


@command.command()
@click.argument("name")
@click.option("--revision", help="Branch, tag or commit.  [default: main]")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False),
    help="File with a token for a gated or private model.",
)
@cluster_option
def fetch(name: str, revision: str | None, token_file: str | None, cluster: str) -> None:
    """Fetch a model, and print its folder.

    NAME is ORG/NAME of a hub, or a small model of 'models list'. Set model.path of a job
    file to the folder, or model.hub to ORG/NAME. After an interruption the same
    command continues the download.
    """
    if "/" in name:
        found, _ = hub.find(_folder(cluster), name, revision, token_file)
        hub.fetch(found, token_file)
        click.echo(found)
        return
    if name not in MODELS:
        message = f"{name!r} is neither ORG/NAME nor one of {', '.join(MODELS)}."
        raise click.BadParameter(message, param_hint="NAME")
    folder = default_folder(name)
    if not is_fetched(folder):
        fetched_models.fetch(MODELS[name], folder, lambda line: print_note(f"{line} ..."))
    click.echo(folder)


@command.command()
@pruning("was last used")
@cluster_option
def prune(cluster: str, older_than_s: float | None, remove_them: bool) -> Sequence[Pruned]:
    """Remove models of hubs; without --yes, only list them.

    A model stays if a run's job file names it, or while it is being downloaded.
    Without --older-than, only remains of interrupted removals are selected.

    \b
    Examples:
      trtllm-hpc models prune --older-than 30d --yes
    """
    return prune_models(_folder(cluster), older_than_s, remove_them=remove_them)
