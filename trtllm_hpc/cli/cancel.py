"""``trtllm-hpc cancel``: cancel a run's jobs."""

from __future__ import annotations

from pathlib import Path

import click

from trtllm_hpc.cli.options import json_option, print_json, run_argument
from trtllm_hpc.paths import RunPaths


@click.command("cancel")
@run_argument
@json_option
def command(run: RunPaths, runs: Path | None, as_json: bool) -> None:
    """Cancel every job of RUN and wait until they have ended.

    A run that has already ended is left unchanged.

    \b
    Example:
      trtllm-hpc cancel latest
    """
    from trtllm_hpc.api.run import Run
    from trtllm_hpc.runs.status import RunState

    before = Run(run).status
    status = before if before.settled else Run(run).cancel()
    if as_json:
        print_json(status)
        return
    if before.state is RunState.RENDERED:
        click.echo(f"{run.run_id} was never submitted: there is nothing to cancel")
    elif before.settled:
        click.echo(f"{run.run_id} had already ended: {status.state.value}, {status.sentence}")
    else:
        click.echo(f"{run.run_id}: {status.state.value}, {status.sentence}")
