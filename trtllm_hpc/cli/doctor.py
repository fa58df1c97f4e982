"""``trtllm-hpc doctor``: find what would fail before it is in the queue."""

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
    "unknown": "that cannot be judged here",
}


@click.command("doctor")
@partial(shared.job_options, required=False)
@shared.ignore_option
@click.option(
    "--on-nodes",
    is_flag=True,
    help="Also run a job of at most ten minutes that checks the nodes and the image.",
)
@click.option(
    "--nodes",
    type=click.IntRange(1, 2),
    help="With --on-nodes: 2 also tries the network between two nodes.  [default: 1]",
)
@click.option(
    "--bundle",
    type=shared.OUTPUT_FILE,
    metavar="FILE",
    help="With --on-nodes: write all that was found, to attach to an issue.",
)
@click.option("--keep", is_flag=True, help="With --on-nodes: leave the folder with scripts and logs.")
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
    """Check JOB, this machine and the cluster; without JOB, only machine and cluster.

    Prints one row per check: ok, warn, fail, or unknown if this machine cannot tell
    (then the preflight checks it in the job's first seconds). Below the table is the
    memory that the model needs on each rank. Nothing is written or submitted, unless
    --on-nodes asks for a job on the nodes, which leaves nothing behind. Of a model.hub
    only the small files are downloaded, config.json for example.

    \b
    Examples:
      trtllm-hpc doctor --cluster pyxis
      trtllm-hpc doctor job.yaml --cluster pyxis --set engine.tensor_parallel=4
      trtllm-hpc doctor job.yaml --cluster pyxis --on-nodes --nodes 2 --bundle site.json

    The exit code is 3 if a check fails.
    """
    if on_nodes and job_file is None:
        raise click.UsageError("--on-nodes looks at the image and the programs of a JOB: name one.")
    if (nodes or bundle or keep) and not on_nodes:
        raise click.UsageError("--nodes, --bundle and --keep go with --on-nodes.")
    from trtllm_hpc.api.jobs import doctor

    report = doctor(job_file, cluster, settings, runs, ignored_checks=ignore)
    if on_nodes:
        from trtllm_hpc.paths import write_text
        from trtllm_hpc.report.doctor import bundle_text
        from trtllm_hpc.runs.node_checks import check_on_nodes

        assert job_file is not None
        with shared.terminating_as_interrupt():
            show = partial(click.echo, err=True)
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
        click.echo()
    for note in report.notes:
        click.echo(f"note: {note}")
    counts = Counter(row.state for row in report.checks)
    parts = [f"{counts[state]} {words}" for state, words in _OUTCOMES.items() if counts[state]]
    click.echo(f"\n{len(report.checks)} checks: {', '.join(parts) or 'all are ok'}.")
    return code
