"""What ``submit`` and ``resume`` print about a run, and how they and ``watch`` follow it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click

from trtllm_hpc.api.run import Run
from trtllm_hpc.cli.options import print_json
from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.paths import call_name, read_plan
from trtllm_hpc.report.causes import cause_lines
from trtllm_hpc.report.engines import CachedEngine, engine_record
from trtllm_hpc.runs.status import RunStatus

watch_option = click.option(
    "--wait",
    is_flag=True,
    help="Follow the run to its end (or until only the server is left); exit with the code of what failed.",
)
"""Passed on as ``wait``."""


@dataclass(frozen=True)
class SubmittedRun:
    """The submitted run."""

    run_id: str
    folder: str
    """The run folder."""
    jobs: dict[str, str]
    """Slurm's job id of each stage; with the profile ``local`` the process id."""
    engine: CachedEngine | None
    """What the cache has; ``None`` for a run that needs no engine from it, or is resumed."""


def print_submitted(
    run: Run, jobs: Mapping[str, str], lines: Sequence[str], *, as_json: bool, watched: bool
) -> None:
    """Print which jobs were submitted, ``lines`` about the run and, unless ``watched``, what to type."""
    if as_json:
        print_json(SubmittedRun(run.id, str(run.folder), dict(jobs), engine_record(run.engine)))
        return
    click.echo(f"run {run.id}\n  folder {run.folder}")
    unit = "process" if read_plan(run.paths).get("scheduler") == "local" else "job"
    for line in (*lines, *(f"{stage}: {unit} {job}" for stage, job in jobs.items())):
        click.echo(f"  {line}")
    if not watched:
        name = call_name(run.paths)
        click.echo(f"next: trtllm-hpc status {name}, or trtllm-hpc logs {name} --follow")


def watch(run: Run, *, as_json: bool) -> int:
    """Follow a run until nothing but its server is left, print its end, and return the exit code."""
    name, stops_server = call_name(run.paths), run.job.stops_server
    try:
        status = run.wait("done", progress=not as_json)
    except KeyboardInterrupt:
        click.echo(
            "\nStopped watching; the run goes on.\n"
            f"  next: trtllm-hpc watch {name}, or trtllm-hpc cancel {name}",
            err=True,
        )
        raise click.exceptions.Abort from None
    except SubmissionError as error:
        error.hint = f"the jobs are submitted, do not submit again: trtllm-hpc watch {name}"
        raise
    if status.state.final and any(not stage.final for stage in status.stages) and stops_server:
        run.cancel()  # the companion is gone and cannot stop the server any more
    _print_end(run, status, as_json)
    return int(status.exit_code)


def _print_end(run: Run, status: RunStatus, as_json: bool) -> None:
    if as_json:
        print_json(status)
        return
    from trtllm_hpc.report.summary import print_summary

    print_summary(run.paths)
    name = call_name(run.paths)
    stream = sys.stderr if status.exit_code else sys.stdout
    click.echo(f"{status.state.value}: {status.sentence}", file=stream)
    if not status.stages:
        click.echo("  next: trtllm-hpc submit the job file again", file=stream)
        return
    if status.causes:
        click.echo("\n".join(f"  {line}" for line in cause_lines(status.causes)), file=stream)
    elif status.exit_code:
        click.echo(f"  next: trtllm-hpc logs {name}", file=stream)
    elif not status.state.final:
        click.echo(f"  next: trtllm-hpc client {name} --prompt TEXT, or trtllm-hpc cancel {name}")
    click.echo(f"run folder: {run.folder}")
