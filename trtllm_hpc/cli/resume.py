"""``trtllm-hpc resume``: submit again what of a run has not ended well."""

from __future__ import annotations

from pathlib import Path

import click

from trtllm_hpc.api.run import Run
from trtllm_hpc.cli.options import json_option, run_argument
from trtllm_hpc.cli.submitted import print_submitted, watch, watch_option
from trtllm_hpc.paths import RunPaths


@click.command("resume")
@run_argument
@watch_option
@json_option
def command(run: RunPaths, runs: Path | None, wait: bool, as_json: bool) -> int:
    """Submit again the stages of RUN that have not ended well, in the same run folder.

    Stages that have completed are not repeated, but a companion needs its server
    again. The scripts are those in the run folder, with what you have changed in
    them. What the earlier attempt wrote is kept in attempts/. A run whose jobs have
    not all ended is refused.

    \b
    Examples:
      trtllm-hpc resume latest --wait
      trtllm-hpc resume tiny-llama --json
    """
    found = Run(run)
    before = found.jobs
    found.resume()
    if not (as_json and wait):
        again = {stage: job for stage, job in found.jobs.items() if before.get(stage) != job}
        print_submitted(found, again, (), as_json=as_json, watched=wait)
    return watch(found, as_json=as_json) if wait else 0
