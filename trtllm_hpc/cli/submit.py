"""``trtllm-hpc submit``: from a job file to a submitted run."""

from __future__ import annotations

from pathlib import Path

import click

from trtllm_hpc.cli.completion import checks, complete_with
from trtllm_hpc.cli.options import job_options, json_option, print_warning
from trtllm_hpc.cli.submitted import print_submitted, watch, watch_option
from trtllm_hpc.report.engines import engine_lines


@click.command("submit")
@job_options
@watch_option
@click.option(
    "--ignore",
    multiple=True,
    metavar="CHECK-ID",
    shell_complete=complete_with(checks),
    help="Submit although this check fails; `trtllm-hpc doctor` lists them.  [repeatable]",
)
@click.option(
    "--notify",
    metavar="URL",
    envvar="TRTLLM_HPC_NOTIFY",
    help="Call this webhook when the server is ready, when a stage fails, and at the end; by default "
    "$TRTLLM_HPC_NOTIFY, which other users do not see.",
)
@json_option
def command(
    job_file: Path,
    cluster: str,
    settings: tuple[str, ...],
    runs: Path | None,
    wait: bool,
    ignore: tuple[str, ...],
    notify: str | None,
    as_json: bool,
) -> int:
    """Render JOB and submit its jobs: build (if anything is), serve, companion.

    The scripts in the run folder are submitted unchanged, chained by Slurm
    dependencies. Without --wait the command returns at once. If a check of
    `doctor` fails, nothing is submitted. The companion stops the server when it
    has measured, unless serve.keep_running is true.

    \b
    Examples:
      trtllm-hpc submit job.yaml --cluster mysite.yaml --wait
      trtllm-hpc submit job.yaml --cluster mysite.yaml --set serve.keep_running=true
      trtllm-hpc submit tiny-llama --cluster sandbox --wait
      trtllm-hpc submit job.yaml --notify https://hooks.example.org/T0/B0

    \b
    Exit codes: 3 job file or profile, 4 rendering, 5 submission, 6 build,
    7 start, 8 not ready in time, 9 request, 10 measurement, 11 cancelled,
    12 a job was lost.
    """
    from trtllm_hpc.api.jobs import submit

    run = submit(
        job_file, cluster, settings, runs, ignored_checks=ignore, notify=notify, on_warning=print_warning
    )
    if not (as_json and wait):
        print_submitted(run, run.jobs, engine_lines(run.engine), as_json=as_json, watched=wait)
    return watch(run, as_json=as_json) if wait else 0
