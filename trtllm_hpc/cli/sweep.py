"""``trtllm-hpc sweep``: run the variants of a job file, and find the best variant."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import click

from trtllm_hpc.api.sweep import Sweep, plan_sweep
from trtllm_hpc.cli import shared
from trtllm_hpc.cli.shared import print_listing
from trtllm_hpc.config.dump import flow
from trtllm_hpc.errors import RunNotFound
from trtllm_hpc.report.formatting import format_time
from trtllm_hpc.report.tables import Table, print_table
from trtllm_hpc.sweeps.record import Variant, find_sweep, list_sweeps
from trtllm_hpc.sweeps.status import SweepStatus


@click.group("sweep", cls=shared.DefaultGroup)
def command() -> None:
    """Run the variants of JOB: every combination of the values of some keys.

    The values are in the job file's section sweep, or in --sweep. All variants are
    checked before anything is submitted. Each variant is a run of its own in the
    folder sweeps/ID/ of the runs, and a failed variant stops no other variant.

    \b
    Examples:
      trtllm-hpc sweep job.yaml --sweep engine.tensor_parallel=2,4,8
      trtllm-hpc sweep job.yaml --sweep engine.max_batch_size=64,256 --set sweep.max_running=2 --wait
      trtllm-hpc sweep job.yaml --set sweep.allocation=one
      trtllm-hpc sweep job.yaml --check
      trtllm-hpc sweep status latest
    """


@dataclass(frozen=True)
class CheckedSweep:
    """A sweep that was only checked."""

    name: str
    """Name of the job."""
    keys: tuple[str, ...]
    """The keys that differ between the variants."""
    variants: tuple[Variant, ...]
    jobs: int
    """Number of jobs that the sweep would submit."""


@command.command("run", short_help="Submit the variants. 'run' can be left out.")
@shared.job_options
@click.option(
    "--sweep",
    "options",
    multiple=True,
    metavar="KEY=A,B",
    help="Vary a key over these values.  [repeatable]",
)
@click.option("--check", is_flag=True, help="Only check and list the variants.")
@click.option("--skip-refused", is_flag=True, help="Submit the valid variants even if others are refused.")
@shared.ignore_option
@click.option("--wait", is_flag=True, help="Follow the sweep to its end, and exit with its exit code.")
@shared.json_option
def run_command(
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
    """Submit the variants of JOB; see 'trtllm-hpc sweep --help'.

    The exit codes are those of 'submit'; with --wait, that of the first failed variant.

    \b
    Examples:
      trtllm-hpc sweep run job.yaml --sweep engine.tensor_parallel=2,4,8 --wait
      trtllm-hpc sweep run job.yaml --check --json
    """
    planned = plan_sweep(
        job_file, cluster, settings, runs, vary=options, skip_refused=skip_refused, ignored_checks=ignore
    )
    for warning in (*(f"left out: {found}" for found in planned.findings), *planned.warnings):
        shared.print_warning(warning)
    record, count = planned.record, len(planned.runs)
    if check and as_json:
        checked = CheckedSweep(record.name, tuple(record.keys), tuple(record.variants), planned.jobs)
        shared.print_json(checked)
        return 0
    if check:
        for variant in record.variants:
            click.echo(f"{variant.name}{'  (left out)' if variant.refused else ''}")
        click.echo(f"{count} variants, {planned.jobs} jobs; nothing was submitted")
        return 0
    planned.write()
    sweep = Sweep(planned.paths)
    if not as_json:
        click.echo(f"sweep {sweep.id}: {count} variants\n  folder {sweep.paths.folder}")
    print_submitted(sweep, (), as_json=as_json and not wait)
    return watch(sweep, as_json=as_json) if wait else 0


_LINE_PAUSE_S = 30.0
"""Pause after which 'watch' repeats an unchanged line."""


sweep_argument = click.argument(
    "sweep",
    default="latest",
    metavar="[SWEEP]",
    callback=lambda ctx, _, value: Sweep(find_sweep(value, shared.runs_folder(ctx))),
    shell_complete=shared.complete_with(
        lambda ctx: ["latest", *(sweep.sweep_id for sweep in list_sweeps(shared.runs_folder(ctx)))]
    ),
)
"""Passed on as ``sweep: Sweep``."""
_variants_argument = click.argument("variants", nargs=-1, metavar="[VARIANT]...")


@dataclass(frozen=True)
class SweepRow:
    """One sweep."""

    sweep_id: str
    folder: str
    name: str
    """Name of the job."""
    keys: Sequence[str]
    """The keys that differ between the variants."""
    variants: int
    created_at: float
    """Seconds since the epoch."""


@command.command("list", short_help="List the sweeps.")
@shared.runs_option
@shared.json_option
def list_command(runs: Path | None, as_json: bool) -> None:
    """List the sweeps, the newest first."""
    rows = []
    for sweep in Sweep.list(runs):
        try:
            record = sweep.record
        except RunNotFound as error:
            shared.print_warning(error.message)
            continue
        folder, count = str(sweep.paths.folder), len(record.variants)
        rows.append(SweepRow(sweep.id, folder, record.name, record.keys, count, record.created_at))
    print_listing(
        rows,
        {
            "sweep": lambda row: row.sweep_id,
            "variants": lambda row: str(row.variants),
            "of": lambda row: ", ".join(row.keys),
            "begun": lambda row: format_time(row.created_at),
        },
        as_json=as_json,
        empty=f"no sweeps in {shared.runs_folder(click.get_current_context())}; see trtllm-hpc sweep --help",
        right=("variants",),
        one_line=("sweep", "begun"),
        optional=("begun",),
    )


@command.command("status", short_help="Show the state of each variant.")
@sweep_argument
@shared.runs_option
@shared.json_option
def status_command(sweep: Sweep, runs: Path | None, as_json: bool) -> None:
    """Show the state of each variant of SWEEP, and why a variant was refused or failed.

    'trtllm-hpc status SWEEP/VARIANT' shows more of one variant.
    """
    _print_status(sweep.status, as_json)


@command.command("watch", short_help="Follow a sweep to its end.")
@sweep_argument
@shared.runs_option
@shared.json_option
def watch_command(sweep: Sweep, runs: Path | None, as_json: bool) -> int:
    """Follow SWEEP to its end.

    Ctrl-C ends the view, not the sweep. The exit code is that of the first failed
    variant, or 0. With --json the command prints only the final state.
    """
    return watch(sweep, as_json=as_json)


@command.command("cancel", short_help="Cancel a sweep, or some of its variants.")
@sweep_argument
@_variants_argument
@shared.runs_option
def cancel_command(sweep: Sweep, variants: tuple[str, ...], runs: Path | None) -> None:
    """Cancel the jobs of SWEEP, or of some variants.

    \b
    Example:
      trtllm-hpc sweep cancel latest tp2-bs64 tp2-bs128
    """
    _print_status(sweep.cancel(variants), as_json=False)


@command.command("resume", short_help="Submit variants that have not completed.")
@sweep_argument
@_variants_argument
@shared.runs_option
def resume_command(sweep: Sweep, variants: tuple[str, ...], runs: Path | None) -> None:
    """Submit the variants of SWEEP that have not completed, or the VARIANTs named.

    Completed stages are not repeated.

    \b
    Example:
      trtllm-hpc sweep resume latest tp4-bs64
    """
    print_submitted(sweep, variants, as_json=False)


@command.command("report", short_help="Write one HTML page, and name the best variant.")
@sweep_argument
@click.option("--slo", metavar="LIMITS", help="Limits for the best variant.  [default: the job file's]")
@shared.runs_option
@shared.json_option
def report_command(sweep: Sweep, slo: str | None, runs: Path | None, as_json: bool) -> None:
    """Write the report of SWEEP so far, one HTML page, and name the best variant.

    The best variant has the most output tokens/s/GPU at a valid level of load that
    meets the SLO. Needs the extra 'report'. With --json no page is written.

    \b
    Example:
      trtllm-hpc sweep report latest --slo 'ttft.p99<500ms,tpot.p99<50ms'
    """
    from trtllm_hpc.sweeps.page import write_report

    results = sweep.results(slo=slo)
    if as_json:
        shared.print_json(results)
        return
    write_report(results, sweep.paths.report)
    click.echo(sweep.paths.report)
    click.echo(results.best.sentence)


def print_submitted(sweep: Sweep, only: Collection[str], *, as_json: bool) -> None:
    """Submit the variants that have not completed, with a line for each variant."""

    def show(name: str, number: int, count: int) -> None:
        shared.print_note(f"  submitted {number} of {count}: {name}", err=as_json)

    following = f"trtllm-hpc sweep resume {sweep.id}", f"trtllm-hpc sweep cancel {sweep.id}"
    with shared.detaching("Stopped; the listed variants are submitted.", *following):
        count = sweep.resume(only, show)
    if as_json:
        shared.print_json(sweep.status)
    elif count:
        advice = f"next: trtllm-hpc sweep status {sweep.id}, or trtllm-hpc sweep watch {sweep.id}"
        shared.print_note(advice, err=False)
    else:
        click.echo("nothing to submit: every variant has completed or is in the queue")


def watch(sweep: Sweep, *, as_json: bool) -> int:
    """Follow a sweep to its end, print the table, and return the exit code."""
    last, printed_s = "", 0.0

    def show(status: SweepStatus) -> None:
        nonlocal last, printed_s
        line = ", ".join(f"{count} {state}" for state, count in status.counts.items())
        if not as_json and (line != last or time.monotonic() - printed_s > _LINE_PAUSE_S):
            last, printed_s = line, time.monotonic()
            shared.print_note(f"  {datetime.now():%H:%M:%S}  {line}")

    following = f"trtllm-hpc sweep watch {sweep.id}", f"trtllm-hpc sweep cancel {sweep.id}"
    with shared.detaching("Stopped watching; the sweep goes on.", *following):
        status = sweep.wait(show)
    _print_status(status, as_json)
    return int(status.exit_code)


def _print_status(status: SweepStatus, as_json: bool) -> None:
    if as_json:
        shared.print_json(status)
        return
    keys = [key.rpartition(".")[2] for key in status.keys]
    table = Table("variant", *keys, "state", "why", one_line=("variant", "state"), optional=keys)
    for variant in status.variants:
        values = [flow(variant.values[key]) if key in variant.values else "" for key in status.keys]
        table.add_row(variant.name, *values, variant.state or "unknown", variant.sentence or "")
    print_table(table)
    click.echo(", ".join(f"{count} {state}" for state, count in status.counts.items()))
    click.echo(f"folder {status.folder}")
    if not status.keys:
        click.echo(f"next: trtllm-hpc resume {status.folder}/VARIANT, for one variant: sweep.json is damaged")
    elif status.settled and not status.completed:
        advice = f"trtllm-hpc sweep resume {status.sweep_id}, or trtllm-hpc sweep report {status.sweep_id}"
        shared.print_note(f"next: {advice}", err=False)
    elif status.settled:
        shared.print_note(f"next: trtllm-hpc sweep report {status.sweep_id}", err=False)
