"""``trtllm-hpc watch``: follow a submitted run, as ``submit --wait`` does."""

from __future__ import annotations

from pathlib import Path

import click

from trtllm_hpc.api.run import Run
from trtllm_hpc.cli.options import json_option, run_argument
from trtllm_hpc.cli.submitted import watch
from trtllm_hpc.client.wait import was_submitted
from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.paths import RunPaths, call_name
from trtllm_hpc.runs.status import RunState


@click.command("watch")
@run_argument
@json_option
def command(run: RunPaths, runs: Path | None, as_json: bool) -> int:
    """Follow RUN live until nothing but its server is left, as 'submit --wait' does.

    From any login node, and after Ctrl-C: the stages with the time they have run
    and have left, the ranks, the last lines of the log, and a benchmark's
    requests per second. The exit code is that of what failed. Ctrl-C ends the
    view and leaves the run alone.

    \b
    Examples:
      trtllm-hpc watch
      trtllm-hpc watch tiny-llama
      trtllm-hpc watch latest --json     nothing until the end, then as 'status --json'
    """
    found = Run(run)
    if not was_submitted(run) and found.status.state is RunState.RENDERED:
        name = call_name(run)
        raise SubmissionError(
            f"Run {run.run_id} was never submitted: there is nothing to watch.",
            hint=f"trtllm-hpc resume {name} --wait submits its scripts",
        )
    return watch(found, as_json=as_json)
