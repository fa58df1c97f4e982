"""``trtllm-hpc runs``: list all runs, compare two, and remove old ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath

import click

from trtllm_hpc.cli.listing import print_listing, pruning
from trtllm_hpc.cli.options import (
    complete_run,
    found_run,
    json_option,
    print_json,
    print_warning,
    runs_folder,
    runs_option,
)
from trtllm_hpc.paths import RunPaths, default_runs_folder
from trtllm_hpc.report.formatting import NONE, format_duration, quantity
from trtllm_hpc.runs.listing import ListedRun, listed_runs
from trtllm_hpc.runs.prune import Pruned, Selection, prune_runs
from trtllm_hpc.runs.status import RunState

_STATES = click.Choice([it.value for it in RunState])


@click.group(invoke_without_command=True)
@click.option("--state", "states", type=_STATES, multiple=True, help="Only runs in it.  [repeatable]")
@runs_option
@json_option
@click.pass_context
def command(
    context: click.Context,
    states: tuple[str, ...],
    runs: Path | None,
    as_json: bool,
) -> None:
    """List all runs, the newest first: state, model, endpoint, age.

    Slurm is asked once, for all runs that have not ended.

    \b
    Examples:
      trtllm-hpc runs
      trtllm-hpc runs --state serving --state pending
      trtllm-hpc runs --json
      trtllm-hpc runs prune --older-than 30d
      trtllm-hpc runs diff yesterday latest
    """
    if context.invoked_subcommand is not None:
        if as_json or states or runs is not None:
            raise click.UsageError(f"Write options after {context.invoked_subcommand!r}.")
        return

    wanted = [RunState(state) for state in states]
    rows = listed_runs(runs_folder(context), states=wanted, warn=print_warning)
    columns: dict[str, Callable[[ListedRun], str]] = {
        "run": lambda row: row.run_id,
        "state": lambda row: "unknown" if row.state is None else row.state.value,
        "model": lambda row: PurePath(row.model).name if row.model else NONE,
        "endpoint": lambda row: row.endpoint or NONE,
        "age": lambda row: format_duration(max(0.0, time.time() - row.created_at)),
        "waited": lambda row: NONE if row.waited_s is None else format_duration(row.waited_s),
        "GPU-h": lambda row: quantity(row.gpu_hours, 2),
    }
    if any(row.saved_gpu_hours for row in rows):
        columns["saved"] = lambda row: quantity(row.saved_gpu_hours, 2)
    print_listing(
        rows,
        columns,
        as_json=as_json,
        empty=f"no such runs in {runs_folder(context)}",
        right=("age", "waited", "GPU-h", "saved"),
        one_line=list(columns),
        optional=("endpoint", "model", "saved", "GPU-h", "waited"),
    )


@command.command()
@pruning("that ended", with_sizes=False)
@runs_option
def prune(runs: Path | None, selection: Selection, remove_them: bool) -> Sequence[Pruned]:
    """Remove the folders of runs that have ended; without --yes, only list them.

    Without --older-than only what an interrupted removal has left goes, which always
    goes. A sweep counts as one run and goes as a whole, after its last variant. A run always
    stays if one of its jobs has not ended, or Slurm does not say so; if a link
    beside it (such as 'best') leads to it; if the job file of a run that stays
    names it; and if one of its scripts is queued by hand.

    \b
    Examples:
      trtllm-hpc runs prune --older-than 30d
      trtllm-hpc runs prune --older-than 30d --yes
    """
    return prune_runs(runs or default_runs_folder(), selection, remove_them=remove_them, warn=print_warning)


@command.command()
@click.argument("a", metavar="A", callback=found_run, shell_complete=complete_run)
@click.argument("b", metavar="B", callback=found_run, shell_complete=complete_run)
@runs_option
@json_option
def diff(a: RunPaths, b: RunPaths, runs: Path | None, as_json: bool) -> None:
    """Show how run B differs from run A: settings, environment, figures.

    The environment is what the run was made of and where it ran: versions,
    image, checkpoint, packages, GPUs with their clocks and power limits. The
    figures are those of the companions' measurements; 'trtllm-hpc bench
    compare' judges them, with a tolerance and an exit code.

    \b
    Examples:
      trtllm-hpc runs diff tiny-llama-20260101-120000-1a2b latest
      trtllm-hpc runs diff tiny-llama latest --json
    """
    from trtllm_hpc.report.comparison_table import print_comparison
    from trtllm_hpc.runs.difference import diff_runs
    from trtllm_hpc.runtime.lock import shown

    found = diff_runs(a, b)
    if as_json:
        print_json(found)
        return
    for title, differences in (("setting", found.settings), ("environment", found.environment)):
        print_listing(
            differences,
            {title: lambda it: it.key, "A": lambda it: shown(it.a), "B": lambda it: shown(it.b)},
            empty=f"{title}: no difference",
        )
    if found.figures is None:
        click.echo("figures: the companions of both runs have none that can be compared")
    else:
        print_comparison(found.figures)
