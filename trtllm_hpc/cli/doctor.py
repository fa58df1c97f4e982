"""``trtllm-hpc doctor``: find faults before a job is submitted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from trtllm_hpc.cli import shared
from trtllm_hpc.errors import ExitCode, State

_OUTCOMES: dict[State, str] = {
    "fail": "failed",
    "warn": "with a warning",
    "unknown": "unknown here",
}


@click.command("doctor")
@partial(shared.job_options, required=False)
@shared.ignore_option
@click.option(
    "--on-nodes",
    is_flag=True,
    help="Also check the nodes and the image, by a job of at most ten minutes.",
)
@click.option(
    "--nodes",
    type=click.IntRange(1, 2),
    metavar="N",
    help="With --on-nodes: 2 also checks the network between nodes.  [default: 1]",
)
@click.option(
    "--bundle",
    type=shared.OUTPUT_FILE,
    metavar="FILE",
    help="With --on-nodes: write all results to FILE, to attach to an issue.",
)
@click.option("--keep", is_flag=True, help="With --on-nodes: keep the folder with scripts and logs.")
@shared.json_option
def command(
    job_file: Path | None,
    cluster: str,
    settings: tuple[str, ...],
    runs: Path | None,
    ignore: tuple[str, ...],
    on_nodes: bool,
    nodes: int | None,
    bundle: Path | None,
    keep: bool,
    as_json: bool,
) -> int:
    """Check JOB, this machine and the cluster. Without JOB, check machine and cluster.

    Each row is a check: ok, warn, fail or unknown (the job itself repeats unknown
    checks at its start). Below the table is the memory that the model needs on each
    rank. Without --on-nodes nothing is submitted. The exit code is 3 if a check fails.

    \b
    Examples:
      trtllm-hpc doctor --cluster pyxis
      trtllm-hpc doctor job.yaml --cluster pyxis --set engine.tensor_parallel=4
      trtllm-hpc doctor job.yaml --cluster pyxis --on-nodes --nodes 2 --bundle site.json
    """
    if on_nodes and job_file is None:
        raise click.UsageError("--on-nodes needs a JOB: it checks the job's image and programs.")
    if (nodes or bundle or keep) and not on_nodes:
        raise click.UsageError("--nodes, --bundle and --keep need --on-nodes.")
    from trtllm_hpc.api.jobs import doctor

    report = doctor(job_file, cluster, settings, runs, ignored_checks=ignore)
    if on_nodes:
        from trtllm_hpc.paths import write_text
        from trtllm_hpc.report.doctor import bundle_text
        from trtllm_hpc.runs.node_checks import check_on_nodes

        assert job_file is not None
        with shared.terminating_as_interrupt():
            show = shared.print_note
            found = check_on_nodes(job_file, cluster, settings, runs, nodes=nodes or 1, keep=keep, show=show)
        report = replace(report, checks=(*report.checks, *found.checks))
        if bundle is not None:
            write_text(bundle, bundle_text(found, report.checks), mode=0o644)
    code = ExitCode.OK if report.ok else ExitCode.CONFIG
    if as_json:
        shared.print_json(report)
        return code
    from trtllm_hpc.report.doctor import checks_table, memory_table
    from trtllm_hpc.report.tables import print_table, terminal_width

    print_table(checks_table(report.checks, narrow=terminal_width() is not None))
    if report.memory is not None:
        click.echo()
        print_table(memory_table(report.memory))
    if report.notes:
        shared.print_note("", err=False)
    for note in report.notes:
        shared.print_note(f"note: {note}", err=False)
    counts = Counter(row.state for row in report.checks)
    parts = [f"{counts[state]} {words}" for state, words in _OUTCOMES.items() if counts[state]]
    click.echo(f"\n{len(report.checks)} checks: {', '.join(parts) or 'all are ok'}.")
    return code
