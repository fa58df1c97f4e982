"""``trtllm-hpc sweep run``: submit every variant of a job file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from trtllm_hpc.api.sweep import Sweep, plan_sweep
from trtllm_hpc.cli.options import (
    complete_with,
    ignore_option,
    job_options,
    json_option,
    print_json,
    print_warning,
    setting_keys,
)
from trtllm_hpc.cli.sweep_saved import print_submitted, watch
from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.sweeps.create import PlannedSweep
from trtllm_hpc.sweeps.record import Variant

MANY = 64
"""More variants need --yes: a mistyped grid is large at once."""


@dataclass(frozen=True)
class CheckedSweep:
    """A sweep of which nothing was submitted."""

    name: str
    """The job's."""
    keys: tuple[str, ...]
    """The keys that differ between the variants."""
    variants: tuple[Variant, ...]
    jobs: int
    """How many jobs it would submit."""


@click.command("run")
@job_options
@click.option(
    "--sweep",
    "options",
    multiple=True,
    metavar="KEY=A,B",
    shell_complete=complete_with(setting_keys),
    help="Add a key with its values to the grid.  [repeatable]",
)
@click.option(
    "--max-running", type=click.IntRange(min=1), metavar="N", help="At most N variants have jobs that run."
)
@click.option(
    "--allocation",
    type=click.Choice(["each", "one"]),
    help="One: a single job serves and measures one variant after another.  [default: each]",
)
@click.option("--check", is_flag=True, help="Only check the variants and list them.")
@click.option("--skip-refused", is_flag=True, help="Submit the others if some variants are wrong.")
@click.option("--yes", is_flag=True, help=f"Submit more than {MANY} variants.")
@ignore_option
@click.option("--wait", is_flag=True, help="Follow the sweep to its end; exit with the code of what failed.")
@json_option
def command(
    job_file: Path,
    cluster: str,
    settings: tuple[str, ...],
    runs: Path | None,
    options: tuple[str, ...],
    max_running: int | None,
    allocation: str | None,
    check: bool,
    skip_refused: bool,
    yes: bool,
    ignore: tuple[str, ...],
    wait: bool,
    as_json: bool,
) -> int:
    """Submit every variant of JOB: each combination of the values of its section `sweep`.

    \b
    Examples:
      trtllm-hpc sweep run job.yaml --sweep engine.tensor_parallel=2,4,8
      trtllm-hpc sweep run job.yaml --max-running 2 --wait
      trtllm-hpc sweep run job.yaml --check --json

    \b
    Exit codes: those of `submit`; with --wait that of the first variant that failed.
    """
    added = [f"sweep.max_running={max_running}"] if max_running is not None else []
    added += [f"sweep.allocation={allocation}"] if allocation is not None else []
    planned = plan_sweep(
        job_file,
        cluster,
        (*settings, *added),
        runs,
        vary=options,
        skip_refused=skip_refused,
        ignored_checks=ignore,
    )
    for found in planned.findings:
        print_warning(f"left out: {found}")
    for warning in planned.warnings:
        print_warning(warning)
    if check:
        _print_checked(planned, as_json)
        return 0
    if not yes:
        _refuse_many(planned)
    planned.write()
    sweep = Sweep(planned.paths)
    count = len(planned.runs)
    if not as_json:
        click.echo(f"sweep {sweep.id}: {count} variants\n  folder {sweep.paths.folder}")
    print_submitted(sweep, (), as_json=as_json and not wait)
    return watch(sweep, as_json=as_json) if wait else 0


def _print_checked(planned: PlannedSweep, as_json: bool) -> None:
    record = planned.record
    if as_json:
        print_json(CheckedSweep(record.name, tuple(record.keys), tuple(record.variants), planned.jobs))
        return
    for variant in record.variants:
        click.echo(f"{variant.name}{'  (left out)' if variant.refused else ''}")
    click.echo(f"{len(planned.runs)} variants, {planned.jobs} jobs; nothing was submitted")


def _refuse_many(planned: PlannedSweep) -> None:
    """Refuse a large sweep without --yes; raises SubmissionError."""
    count, jobs = len(planned.runs), planned.jobs
    if count > MANY:
        raise SubmissionError(
            f"These are {count} variants, with {jobs} jobs.", hint="the same command with --yes"
        )
