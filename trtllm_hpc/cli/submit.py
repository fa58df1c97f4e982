"""``trtllm-hpc submit``: from a job file to a submitted run."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtllm_hpc.cli.completion import checks, complete_with
from trtllm_hpc.cli.options import job_options, json_option, print_json, print_warning
from trtllm_hpc.paths import call_name
from trtllm_hpc.report.engines import (
    FoundEngine,
    MissedEngine,
    UnknownEngine,
    engine_lines,
    engine_record,
)

if TYPE_CHECKING:
    from trtllm_hpc.engine_cache.lookup import Hit, Miss, Unknown
    from trtllm_hpc.paths import RunPaths
    from trtllm_hpc.runs.status import RunStatus


@dataclass(frozen=True)
class SubmittedRun:
    """The submitted run."""

    run_id: str
    folder: str
    """The run folder."""
    jobs: dict[str, str]
    """Slurm's job id of each stage; with the profile ``local`` the process id."""
    engine: FoundEngine | MissedEngine | UnknownEngine | None
    """What the cache has; ``None`` for a run that needs no engine from it."""


@click.command("submit")
@job_options
@click.option(
    "--wait",
    is_flag=True,
    help="Follow the run to its end (or until only the server is left); exit with the code of what failed.",
)
@click.option(
    "--ignore",
    multiple=True,
    metavar="CHECK-ID",
    shell_complete=complete_with(checks),
    help="Submit although this check fails; `trtllm-hpc doctor` lists them.  [repeatable]",
)
@json_option
def command(
    job_file: Path,
    cluster: str,
    settings: tuple[str, ...],
    runs: Path | None,
    wait: bool,
    ignore: tuple[str, ...],
    as_json: bool,
) -> int:
    """Render JOB and submit its jobs: build, serve, companion.

    The scripts in the run folder are submitted unchanged, chained by Slurm
    dependencies. Without --wait the command returns at once. If a check of
    `doctor` fails, nothing is submitted.

    \b
    Examples:
      trtllm-hpc submit job.yaml --cluster pyxis.yaml
      trtllm-hpc submit job.yaml --cluster sandbox --wait
      trtllm-hpc submit job.yaml --set serve.keep_running=true

    \b
    Exit codes: 3 job file or profile, 4 rendering, 5 submission, 6 build,
    7 start, 8 not ready in time, 9 request, 10 measurement, 11 cancelled,
    12 a job was lost.
    """
    from trtllm_hpc.runs.submit import create_for_submission, submit_stages

    plan, paths, engine = create_for_submission(
        job_file, cluster, settings, runs, ignored_checks=ignore, warn=print_warning
    )
    echo = (lambda text: None) if as_json else click.echo
    echo(f"run {paths.run_id}\n  folder {paths.folder}")
    for line in engine_lines(engine):
        echo(f"  {line}")
    unit = "process" if plan.cluster.scheduler == "local" else "job"
    submit_stages(plan, paths, progress=lambda stage, job: echo(f"  {stage}: {unit} {job}"))
    if not wait:
        _print_next(paths, engine, as_json)
        return 0
    status = _wait(paths, live=not as_json, keeps_serving=not plan.stops_server)
    if plan.stops_server and status.state.final and any(not stage.final for stage in status.stages):
        # The companion is gone and cannot stop the server any more.
        from trtllm_hpc.runs.cancel import cancel_run

        cancel_run(paths)
    _print_end(status, paths, as_json)
    return int(status.exit_code)


def _print_next(paths: RunPaths, engine: Hit | Miss | Unknown | None, as_json: bool) -> None:
    if as_json:
        from trtllm_hpc.paths import read_json

        stages = (read_json(paths.jobs) or {})["stages"]
        jobs = {stage: job["job_id"] for stage, job in stages.items()}
        print_json(SubmittedRun(paths.run_id, str(paths.folder), jobs, engine_record(engine)))
        return
    run = call_name(paths)
    click.echo(f"next: trtllm-hpc status {run}, or trtllm-hpc logs {run} --follow")


def _wait(paths: RunPaths, *, live: bool, keeps_serving: bool) -> RunStatus:
    status = None
    try:  # from the very first: the jobs are there already
        from trtllm_hpc.report.live import LivePrinter
        from trtllm_hpc.runs.watch import follow

        with LivePrinter(enabled=live) as printer:
            for progress in follow(paths, keeps_serving=keeps_serving):
                printer.show(progress)
                status = progress.status
    except KeyboardInterrupt:
        run = call_name(paths)
        click.echo(
            "\nStopped watching; the run goes on.\n"
            f"  next: trtllm-hpc status {run}, or trtllm-hpc cancel {run}",
            err=True,
        )
        raise click.exceptions.Abort from None
    assert status is not None
    return status


def _print_end(status: RunStatus, paths: RunPaths, as_json: bool) -> None:
    if as_json:
        print_json(status)
        return
    from trtllm_hpc.report.summary import print_summary

    print_summary(paths)
    stream = sys.stderr if status.exit_code else sys.stdout
    click.echo(f"{status.state.value}: {status.sentence}", file=stream)
    if status.exit_code:
        click.echo(f"  next: trtllm-hpc logs {call_name(paths)}", file=stream)
    elif not status.state.final:
        run = call_name(paths)
        click.echo(f"  next: trtllm-hpc client {run} --prompt TEXT, or trtllm-hpc cancel {run}")
    click.echo(f"run folder: {paths.folder}")
