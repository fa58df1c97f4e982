"""``trtllm-hpc sweep run``: submit every variant of a job file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from trtllm_hpc.api.sweep import Sweep, plan_sweep
from trtllm_hpc.cli.options import (
    ignore_option,
    job_options,
    json_option,
    print_json,
    print_warning,
)
from trtllm_hpc.cli.sweep_saved import print_submitted, watch
from trtllm_hpc.sweeps.create import PlannedSweep
from trtllm_hpc.sweeps.record import Variant


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
    help="Add a key with its values to the grid.  [repeatable]",
)
@click.option("--check", is_flag=True, help="Only check the variants and list them.")
@click.option("--skip-refused", is_flag=True, help="Submit the others if some variants are wrong.")
@ignore_option
@click.option("--wait", is_flag=True, help="Follow the sweep to its end; exit with the code of what failed.")
@json_option
def command(
    job_file: Path,
    cluster: str,
    settings: tuple[str, ...],
    runs: Path | None,
    options: tuple[str, ...],
    check: bool,
    skip_refused: bool,
    ignore: tuple[str, ...],
    wait: bool,
    as_json: bool,
) -> int:
    """Submit every variant of JOB: each combination of the values of its section `sweep`.

    \b
    Examples:
      trtllm-hpc sweep run job.yaml --sweep engine.tensor_parallel=2,4,8
      trtllm-hpc sweep run job.yaml --set sweep.max_running=2 --wait
      trtllm-hpc sweep run job.yaml --set sweep.allocation=one
      trtllm-hpc sweep run job.yaml --check --json

    \b
    Exit codes: those of `submit`; with --wait that of the first variant that failed.
    """
    planned = plan_sweep(
        job_file,
        cluster,
        settings,
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
