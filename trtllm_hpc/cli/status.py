"""``trtllm-hpc status``: the state of a run."""

from __future__ import annotations

import time
from pathlib import Path

import click

from trtllm_hpc.api.run import Run
from trtllm_hpc.cli.options import json_option, print_json, run_argument
from trtllm_hpc.logs.causes.explain import cause_lines
from trtllm_hpc.paths import RunPaths, call_name
from trtllm_hpc.report.rank_groups import grouped
from trtllm_hpc.report.status import status_table, use_sentence
from trtllm_hpc.report.tables import print_table


@click.command("status")
@run_argument
@json_option
def command(run: RunPaths, runs: Path | None, as_json: bool) -> None:
    """Show the state of the jobs and ranks of RUN, and what failed first.

    Of more than 8 ranks those in the same state are on one line, as
    'ranks 0-4,6-1023 on 128 hosts: ended 0', and the first 8 failed ones by
    name; --json has every rank.

    Of a job in the queue it says why it waits, its place by priority and, if a
    limit holds it, the limit; of the run, GPU-hours by stage and waiting time.

    \b
    Examples:
      trtllm-hpc status
      trtllm-hpc status tiny-llama --json
    """
    status = Run(run).status
    if as_json:
        print_json(status)
        return

    click.echo(f"run {status.run_id}")
    print_table(status_table(status.stages, time.time()))
    for one in status.instances:
        restarts = f", restarts: {one.restarts}" if one.restarts else ""
        click.echo(f"instance {one.instance}: {one.state}{restarts}{f'; {one.reason}' if one.reason else ''}")
    for group in grouped(status.ranks):
        where = f" on {group.host}" if group.host else ""
        click.echo(f"{group.name}{where}: {group.state}")
    for bad in status.bad_nodes:
        what = "is left out" if bad.kept is None else f"may be used again ({bad.kept})"
        click.echo(f"node {bad.node} {what}: {bad.why} (job {bad.job_id})")
    click.echo(f"{status.state.value}: {status.sentence}")
    for line in cause_lines(status.causes):
        click.echo(line)
    if used := use_sentence(status):
        click.echo(f"used: {used}")
    endpoint = status.endpoint
    if endpoint is not None:
        click.echo(f"endpoint: {endpoint.places} on {endpoint.host}")
        if status.gateway_failure is not None:
            click.echo(f"gateway: {status.gateway_failure}")
            click.echo(f"next: trtllm-hpc logs {call_name(run)} --stage gateway")
        if endpoint.key_file is not None:
            click.echo(f"key: {endpoint.key_file}")
        if endpoint.fingerprint is not None:
            click.echo(f"certificate: {endpoint.certificate_file}, SHA-256 {endpoint.fingerprint}")
    click.echo(f"folder: {status.folder}")
