"""``trtllm-hpc runs``: list runs, and remove old ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath

import click

from trtllm_hpc.cli.shared import json_option, print_listing, print_warning, pruning, runs_folder, runs_option
from trtllm_hpc.paths import default_runs_folder
from trtllm_hpc.report.formatting import NONE, format_duration, quantity
from trtllm_hpc.runs.listing import ListedRun, listed_runs
from trtllm_hpc.runs.prune import Pruned, prune_runs
from trtllm_hpc.runs.status import RunState

_STATES = click.Choice([state.value for state in RunState])


@click.group(invoke_without_command=True)
@click.option(
    "--state",
    "states",
    type=_STATES,
    multiple=True,
    metavar="STATE",
    help=f"Only runs in this state: {', '.join(_STATES.choices)}.  [repeatable]",
)
@runs_option
@json_option
@click.pass_context
def command(context: click.Context, states: tuple[str, ...], runs: Path | None, as_json: bool) -> None:
    """List runs, the newest first: state, model, endpoint, age.

    \b
    Examples:
      trtllm-hpc runs
      trtllm-hpc runs --state serving --state pending
      trtllm-hpc runs --json
      trtllm-hpc runs prune --older-than 30d
    """
    if context.invoked_subcommand is not None:
        if as_json or states or runs is not None:
            raise click.UsageError(f"Write the options after {context.invoked_subcommand!r}.")
        return

    wanted = [RunState(state) for state in states]
    rows = listed_runs(runs_folder(context), states=wanted, warn=print_warning)
    columns: dict[str, Callable[[ListedRun], str]] = {
        "run": lambda row: row.run_id,
        "state": lambda row: "unknown" if row.state is None else row.state.value,
        "model": lambda row: PurePath(row.model).name if row.model else NONE,
        "endpoint": lambda row: row.endpoint or NONE,
        "age": lambda row: format_duration(max(0.0, time.time() - row.created_at)),
    }
    if any(row.gpu_hours for row in rows):
        columns["GPU-h"] = lambda row: quantity(row.gpu_hours, 2)
    print_listing(
        rows,
        columns,
        as_json=as_json,
        empty=f"no such runs in {runs_folder(context)}",
        right=("age", "GPU-h"),
        one_line=list(columns),
        optional=("endpoint", "model", "GPU-h"),
    )


@command.command()
@pruning("ended", with_sizes=False)
@runs_option
def prune(runs: Path | None, older_than_s: float | None, remove_them: bool) -> Sequence[Pruned]:
    """Remove the folders of ended runs; without --yes, only list them.

    A sweep counts as one run. A run stays unless Slurm confirms that its jobs have
    ended. Without --older-than, only remains of interrupted removals are selected.

    \b
    Examples:
      trtllm-hpc runs prune --older-than 30d
      trtllm-hpc runs prune --older-than 30d --yes
    """
    folder = runs or default_runs_folder()
    return prune_runs(folder, older_than_s, remove_them=remove_them, warn=print_warning)
