"""``trtllm-hpc status`` and ``cancel``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import click

from trtllm_hpc.api.run import Run
from trtllm_hpc.bench.progress import read_progress
from trtllm_hpc.cli import shared
from trtllm_hpc.errors import RunNotFound, SubmissionError
from trtllm_hpc.logs.causes.explain import cause_lines
from trtllm_hpc.logs.reading import escaped
from trtllm_hpc.paths import RunPaths, call_name
from trtllm_hpc.report.status import client_lines, end_line, grouped, status_table, use_sentence
from trtllm_hpc.report.tables import SENTENCE_WIDTH, print_table, sentences
from trtllm_hpc.runs.listing import listed_runs
from trtllm_hpc.runs.status import RunState, RunStatus, status_or_files


@click.command("status")
@shared.run_argument
@shared.json_option
def command(run: RunPaths, runs: Path | None, as_json: bool) -> None:
    """Show the state of the jobs and ranks of RUN, and the cause of a failure.

    With more than 8 ranks, ranks in the same state share a line; --json lists every
    rank. If Slurm does not answer within 10 s, the state comes from the run's files
    and the exit code is 5.

    \b
    Examples:
      trtllm-hpc status
      trtllm-hpc status tiny-llama --json
    """
    status, unanswered = status_or_files(run)
    if as_json:
        shared.print_json(status)
    else:
        click.echo(f"run {status.run_id}")
        print_table(status_table(status.stages, time.time()), most=SENTENCE_WIDTH)
        click.echo(sentences(escaped("\n".join(_lines(status, run))).split("\n")))
    if unanswered is not None:
        raise unanswered


def _lines(status: RunStatus, run: RunPaths) -> Iterator[str]:
    """Yield the lines below the table of the stages."""
    measures = any(stage.stage == "companion" and stage.state == "RUNNING" for stage in status.stages)
    if measures and (progress := read_progress(run.benchmark_progress)) is not None:
        yield f"companion: benchmark: {progress}"
    if status.evaluation is not None:
        yield from (f"evaluation: {line}" for line in status.evaluation.lines())
    for server in status.instances:
        restarts = f", restarts: {server.restarts}" if server.restarts else ""
        reason = f"; {server.reason}" if server.reason else ""
        yield f"instance {server.instance}: {server.state}{restarts}{reason}"
    for group in grouped(status.ranks):
        where = f" on {group.host}" if group.host else ""
        yield f"{group.name}{where}: {group.state}"
    for bad in status.bad_nodes:
        what = "is excluded" if bad.kept is None else f"may be used again ({bad.kept})"
        yield f"node {bad.node} {what}: {bad.why} (job {bad.job_id})"
    for why in dict.fromkeys(job.why for job in status.failed_jobs):
        jobs = [job.job_id for job in status.failed_jobs if job.why == why]
        yield f"earlier job{'s' * (len(jobs) > 1)} {', '.join(jobs)} failed: {why}"
    if status.failed_jobs:
        yield f"next: trtllm-hpc explain {call_name(run)}"
    yield end_line(status)
    yield from cause_lines(status.causes)
    if used := use_sentence(status):
        yield f"used: {used}"
    yield from (f"asked by {line}" for line in client_lines(status.clients, time.time()))
    endpoint = status.endpoint
    if endpoint is not None:
        yield f"endpoint: {endpoint.places} on {endpoint.host}"
        if status.front_restarts:
            yield f"front: restarts: {len(status.front_restarts)}; {status.front_restarts[-1]}"
        if status.gateway_failure is not None:
            yield f"gateway: {status.gateway_failure}"
            yield f"next: trtllm-hpc logs {call_name(run)} --stage gateway"
        if endpoint.key_file is not None:
            yield f"key: {endpoint.key_file}"
        if endpoint.fingerprint is not None:
            yield f"certificate: {endpoint.certificate_file}, SHA-256 {endpoint.fingerprint}"
    yield f"folder: {status.folder}"


@click.command("cancel")
@shared.runs_option
@shared.optional_run
@click.pass_context
def cancel_command(context: click.Context, run: RunPaths | None, runs: Path | None) -> None:
    """Cancel every job of RUN and wait until the jobs have ended.

    RUN can be omitted if only one run has queued or running jobs. The exit code is 5
    if a job has not ended within a minute.

    \b
    Examples:
      trtllm-hpc cancel
      trtllm-hpc cancel latest
    """
    found = Run(run if run is not None else _only_living(shared.runs_folder(context)))
    status = found.cancel()
    if status.state is RunState.RENDERED:
        click.echo(f"{found.id} was never submitted: there is nothing to cancel")
    else:
        click.echo(f"{found.id}: {status.state.value}, {status.sentence}")
    if any(stage.job_id and not stage.final for stage in status.stages):
        message = f"A job of {found.id} has not ended yet."
        raise SubmissionError(message, hint=f"trtllm-hpc status {call_name(found.paths)}")


def _only_living(runs: Path) -> RunPaths:
    """Return the only run with queued or running jobs; raises RunNotFound if there is none, or several."""
    # If Slurm does not answer, every run may have such jobs.
    rows = [row for row in listed_runs(runs, warn=shared.print_warning) if row.live or row.state is None]
    if not rows:
        message = f"No run in {runs} has queued or running jobs: there is nothing to cancel."
        raise RunNotFound(message, hint="trtllm-hpc runs, or name the folder of runs with --runs")
    if len(rows) > 1:
        states = ", ".join(f"{row.run_id} ({row.state.value if row.state else 'unknown'})" for row in rows)
        message = f"{len(rows)} runs have queued or running jobs: {states}."
        raise RunNotFound(message, hint=f"trtllm-hpc cancel {rows[0].run_id}")
    return RunPaths(rows[0].folder)
