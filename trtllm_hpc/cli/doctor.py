"""``trtllm-hpc doctor``: find what would fail before it is in the queue."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtllm_hpc.cli.options import job_options, json_option, print_json
from trtllm_hpc.errors import ExitCode, State

if TYPE_CHECKING:
    from trtllm_hpc.validation.checks import DoctorReport


@click.command("doctor")
@partial(job_options, required=False)
@click.option("--rules", "with_rules", is_flag=True, help="Also list every rule of job files and profiles.")
@json_option
def command(
    job_file: Path | None,
    cluster: str,
    settings: tuple[str, ...],
    runs: Path | None,
    with_rules: bool,
    as_json: bool,
) -> int:
    """Check JOB, this machine and the cluster; without JOB, only machine and cluster.

    Prints one row per check: ok, warn, fail, or unknown if this machine cannot tell
    (then the preflight checks it in the job's first seconds). Below the table is the
    memory that the model needs on each rank. Nothing is written or submitted.

    \b
    Examples:
      trtllm-hpc doctor --cluster pyxis
      trtllm-hpc doctor job.yaml --cluster pyxis --set engine.tensor_parallel=4

    The exit code is 3 if a check fails.
    """
    if with_rules and job_file is None:
        raise click.UsageError("--rules lists the rules that a JOB has kept: name one.")
    from trtllm_hpc.api.jobs import doctor

    report = doctor(job_file, cluster, settings, runs)
    if as_json:
        print_json(report)
    else:
        _print_tables(report, with_rules)
        click.echo(f"\n{_summary(report)}")
    return ExitCode.OK if report.ok else ExitCode.CONFIG


def _print_tables(report: DoctorReport, with_rules: bool) -> None:
    from trtllm_hpc.report.doctor import checks_table, memory_table, rules_table
    from trtllm_hpc.report.tables import print_table, terminal_width

    print_table(checks_table(report.checks, narrow=terminal_width() is not None))
    if report.memory is not None:
        click.echo()
        print_table(memory_table(report.memory))
    if report.rules and with_rules:
        click.echo()
        print_table(rules_table(report.rules))
    elif report.rules:
        click.echo(f"\nAll {len(report.rules)} rules of job files and profiles are met (--rules lists them).")
    if report.notes:
        click.echo()
    for note in report.notes:
        click.echo(f"note: {note}")


_OUTCOMES: dict[State, str] = {
    "fail": "failed",
    "warn": "with a warning",
    "unknown": "that cannot be judged here",
}


def _summary(report: DoctorReport) -> str:
    counts = Counter(row.outcome for row in report.checks)
    parts = [f"{counts[state]} {words}" for state, words in _OUTCOMES.items() if counts[state]]
    return f"{len(report.checks)} checks: {', '.join(parts) or 'all are ok'}."
