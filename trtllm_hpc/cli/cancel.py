"""``trtllm-hpc cancel``: cancel a run's jobs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from trtllm_hpc.api.run import Run
from trtllm_hpc.cli.options import RunType, json_option, print_json, print_warning, runs_folder, runs_option
from trtllm_hpc.errors import RunNotFound
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runs.find import submitted_at
from trtllm_hpc.runs.status import RunState


@click.command("cancel")
@runs_option
@click.argument("run", type=RunType(), required=False, metavar="[RUN]")
@click.option("--yes", is_flag=True, help="Without RUN: cancel the latest run that lives, and do not ask.")
@json_option
@click.pass_context
def command(
    context: click.Context, run: RunPaths | None, runs: Path | None, yes: bool, as_json: bool
) -> None:
    """Cancel every job of RUN and wait until they have ended.

    Without RUN the only run that lives is cancelled: a run with a job that is in the
    queue or runs. If several live, the command asks whether you mean the latest. A run
    that has already ended is left unchanged.

    \b
    Examples:
      trtllm-hpc cancel
      trtllm-hpc cancel latest
    """
    found = Run(run if run is not None else _living(runs_folder(context), yes=yes))
    before = found.status
    status = before if before.settled else found.cancel()
    if as_json:
        print_json(status)
    elif before.state is RunState.RENDERED:
        click.echo(f"{found.id} was never submitted: there is nothing to cancel")
    elif before.settled:
        click.echo(f"{found.id} had already ended: {status.state.value}, {status.sentence}")
    else:
        click.echo(f"{found.id}: {status.state.value}, {status.sentence}")


def _living(runs: Path, *, yes: bool) -> RunPaths:
    """Return the run to cancel when no RUN is given.

    Raises:
        RunNotFound: no run lives.
        click.UsageError: several live, and there is no terminal to ask at.
        click.Abort: the answer was no.
    """
    # Where Slurm does not answer, each run may live.
    rows = [row for row in Run.overview(runs, on_warning=print_warning) if row.live or row.state is None]
    if not rows:
        message = f"No job of a run in {runs} is in the queue or runs: there is nothing to cancel."
        raise RunNotFound(message, hint="trtllm-hpc runs, or name the folder of runs with --runs")
    rows.sort(key=lambda row: submitted_at(RunPaths(row.folder)) or row.created_at, reverse=True)
    latest = rows[0]
    if len(rows) > 1 and not yes:
        states = ", ".join(f"{row.run_id} ({row.state.value if row.state else 'unknown'})" for row in rows)
        if not sys.stdin.isatty():
            raise click.UsageError(
                f"{len(rows)} runs live: {states}. Name the run: trtllm-hpc cancel {latest.run_id}, "
                "or write --yes to cancel this latest one."
            )
        click.confirm(f"{len(rows)} runs live: {states}.\nCancel {latest.run_id}?", abort=True, err=True)
    return RunPaths(latest.folder)
