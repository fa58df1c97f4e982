"""``trtllm-hpc render``, ``submit``, ``resume`` and ``watch``: make, submit and follow a run."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtllm_hpc.api.run import Run
from trtllm_hpc.cli import shared
from trtllm_hpc.engine_cache import CachedEngine
from trtllm_hpc.errors import RunNotFound, SubmissionError
from trtllm_hpc.logs.causes.explain import cause_lines
from trtllm_hpc.logs.snapshot import RunSnapshot, readable_plan
from trtllm_hpc.paths import COMPANION_MEASUREMENT, RunPaths, call_name, read_json
from trtllm_hpc.report.status import end_line, engine_lines
from trtllm_hpc.report.tables import sentences
from trtllm_hpc.runs.endpoint import was_submitted
from trtllm_hpc.runs.status import RunState
from trtllm_hpc.runtime.plan_record import PlanRecord
from trtllm_hpc.runtime.records import Endpoint, known_fields, read_events

if TYPE_CHECKING:
    from trtllm_hpc.plan.model import Plan

watch_option = click.option(
    "--wait",
    is_flag=True,
    help="Follow the run until it ends, or only its server is left, and exit with the run's exit code.",
)
"""Passed on as ``wait``."""


@dataclass(frozen=True)
class RenderedRun:
    """A run folder with its scripts; nothing is submitted."""

    run_id: str
    folder: str
    """The run folder."""
    scripts: tuple[str, ...]
    """Paths of the sbatch scripts, in the order of submission."""
    engine: CachedEngine | None
    """The result of the search in the engine cache; ``None``: the run needs no cached engine."""


@dataclass(frozen=True)
class PreviewedRun:
    """A run that ``submit`` would make. Each submission has another ID."""

    run_id: str
    folder: str
    """The run folder, which does not exist."""
    commands: tuple[str, ...]
    """The commands of ``submit`` as lines of bash, in their order."""
    engine: CachedEngine | None
    """The result of the search in the engine cache; ``None``: the run needs no cached engine."""


@click.command("render")
@shared.job_options
@shared.json_option
def render_command(
    job_file: Path, cluster: str, settings: tuple[str, ...], runs: Path | None, as_json: bool
) -> None:
    """Write the run folder of JOB with its scripts; submit nothing.

    The scripts are byte for byte what 'submit' submits. Needs no Slurm.

    \b
    Examples:
      trtllm-hpc render job.yaml --cluster pyxis
      trtllm-hpc render qwen3-8b --cluster pyxis --set model.path=~/models/Qwen3-8B
      trtllm-hpc render job.yaml --set serve.nodes=2 --runs ~/runs
    """
    from trtllm_hpc.api.jobs import render

    run = render(job_file, cluster, settings, runs, on_warning=shared.print_warning)
    if as_json:
        files = tuple(str(file) for file in run.scripts)
        shared.print_json(RenderedRun(run.id, str(run.folder), files, run.engine))
        return
    click.echo(f"rendered {run.folder}")
    for script in run.scripts:
        click.echo(f"  {script.relative_to(run.folder)}")
    for line in engine_lines(run.engine):
        click.echo(line)
    click.echo("\nTo submit by hand, in this order:")
    for line in submission_commands(readable_plan(run.paths), run.paths):
        click.echo(f"  {line}")


def submission_commands(plan: PlanRecord, paths: RunPaths) -> Iterator[str]:
    """Yield the commands of bash that do what ``submit`` does."""
    yield f"cd {shlex.quote(str(paths.folder))}"
    if plan.slurm_conf:
        yield f"export SLURM_CONF={shlex.quote(plan.slurm_conf)}"
    for stage in plan.stages:
        script = f"scripts/{stage.name}.sbatch"
        if plan.scheduler == "local":
            yield f"bash {script}{' &' * (stage.name == 'serve')}"
            continue
        conditions = ",".join(f"{dependency.kind}:${dependency.stage}" for dependency in stage.after)
        option = f" --kill-on-invalid-dep=yes --dependency={conditions}" if conditions else ""
        # With --clusters sbatch prints JOBID;CLUSTER, but --dependency accepts only the number.
        cut = " | cut -d\\; -f1" if stage.first.cluster else ""
        yield f"{stage.name}=$(sbatch --parsable{option} {script}{cut})"


@click.command("submit")
@shared.job_options
@watch_option
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show what would be submitted, after submit's checks, which do not ask Slurm's controller. "
    "Write nothing.",
)
@shared.ignore_option
@shared.json_option
def command(
    job_file: Path,
    cluster: str,
    settings: tuple[str, ...],
    runs: Path | None,
    wait: bool,
    dry_run: bool,
    ignore: tuple[str, ...],
    as_json: bool,
) -> int:
    """Submit the jobs of JOB: build (if an engine is missing), serve, companion.

    If a check fails, nothing is submitted. The companion measures the
    server and then stops it, unless serve.keep_running is true.

    To repeat a run, name its folder or its lock.json as JOB. A warning names each
    difference. The lock holds no secrets: export the variables that the command
    asks for.

    \b
    Examples:
      trtllm-hpc submit job.yaml --cluster mysite.yaml --wait
      trtllm-hpc submit job.yaml --cluster mysite.yaml --dry-run
      trtllm-hpc submit job.yaml --set serve.keep_running=true
      trtllm-hpc submit ~/runs/tiny-llama-20260101-120000-1a2b/lock.json --wait

    \b
    Exit codes: 3 job file or profile, 4 rendering, 5 submission, 6 build,
    7 start, 8 not ready in time, 9 request, 10 measurement, 11 cancelled,
    12 job lost, 18 the model's answers fail the gate.
    """
    from trtllm_hpc.api.jobs import preview, submit

    if dry_run and wait:
        raise click.UsageError("--dry-run submits nothing, so --wait has nothing to follow: choose one.")
    warn = shared.print_warning
    if dry_run:
        plan, engine = preview(job_file, cluster, settings, runs, ignored_checks=ignore, on_warning=warn)
        _print_preview(plan, engine, as_json=as_json)
        return 0
    run = submit(job_file, cluster, settings, runs, ignored_checks=ignore, on_warning=warn)
    if not (as_json and wait):
        _print_submitted(run, run.jobs, engine_lines(run.engine), as_json=as_json, watched=wait)
    return _watch(run, as_json=as_json) if wait else 0


def _print_preview(plan: Plan, engine: CachedEngine | None, *, as_json: bool) -> None:
    paths = RunPaths(plan.run_folder)
    commands = tuple(submission_commands(plan, paths))
    if as_json:
        shared.print_json(PreviewedRun(paths.run_id, str(paths.folder), commands, engine))
        return
    click.echo(f"run {paths.run_id}\n  folder {paths.folder}")
    for line in engine_lines(engine):
        click.echo(f"  {line}")
    click.echo("\nsubmit would make this folder, and run:")
    for command_line in commands:
        click.echo(f"  {command_line}")
    click.echo("\nNothing was written or submitted. Each submission has another run ID.")


@click.command("resume")
@shared.run_argument
@watch_option
def resume_command(run: RunPaths, runs: Path | None, wait: bool) -> int:
    """Submit again the stages of RUN that have not completed, in the same folder.

    All jobs of RUN must have ended. Completed stages are not repeated, except a
    server that the companion needs. Your changes to the scripts in the run folder
    take effect. The folder attempts/ keeps the logs of earlier attempts.

    \b
    Examples:
      trtllm-hpc resume latest --wait
    """
    found = Run(run)
    before = found.jobs
    found.resume()
    again = {stage: job for stage, job in found.jobs.items() if before.get(stage) != job}
    _print_submitted(found, again, (), as_json=False, watched=wait)
    return _watch(found, as_json=False) if wait else 0


@click.command("watch")
@shared.run_argument
@shared.json_option
def watch_command(run: RunPaths, runs: Path | None, as_json: bool) -> int:
    """Follow RUN live until it ends, or only its server is left, as 'submit --wait' does.

    Shows the stages with their elapsed and remaining time, the ranks, the last log
    lines and the progress of a benchmark. Ctrl-C ends the view, not the run. The
    exit code is the run's.

    \b
    Examples:
      trtllm-hpc watch tiny-llama
      trtllm-hpc watch latest --json     at the end, print what 'status --json' prints
    """
    found = Run(run)
    if not was_submitted(run) and found.status.state is RunState.RENDERED:
        name = call_name(run)
        raise SubmissionError(
            f"Run {run.run_id} was never submitted: there is nothing to watch.",
            hint=f"trtllm-hpc resume {name} --wait submits its scripts",
        )
    return _watch(found, as_json=as_json)


@dataclass(frozen=True)
class SubmittedRun:
    """The submitted run."""

    run_id: str
    folder: str
    """The run folder."""
    jobs: dict[str, str]
    """Slurm's job ID of each stage; with the profile ``local`` the process ID."""
    engine: CachedEngine | None
    """The result of the search in the engine cache; ``None``: the run needs no cached engine."""


def _print_submitted(
    run: Run, jobs: Mapping[str, str], lines: Sequence[str], *, as_json: bool, watched: bool
) -> None:
    """Print the submitted jobs, further ``lines`` and, unless ``watched``, the next commands."""
    if as_json:
        shared.print_json(SubmittedRun(run.id, str(run.folder), dict(jobs), run.engine))
        return
    click.echo(f"run {run.id}\n  folder {run.folder}")
    unit = "process" if RunSnapshot(run.paths).is_local else "job"
    for line in (*lines, *(f"{stage}: {unit} {job}" for stage, job in jobs.items())):
        click.echo(f"  {line}")
    if not watched:
        name = call_name(run.paths)
        shared.print_note(f"next: trtllm-hpc status {name}, or trtllm-hpc logs {name} --follow", err=False)


def _watch(run: Run, *, as_json: bool) -> int:
    """Follow a run until it ends, or only its server is left; print the result, and return the exit code."""
    name, stops_server = call_name(run.paths), run.job.stops_server
    following = f"trtllm-hpc watch {name}", f"trtllm-hpc cancel {name}"
    try:
        with shared.detaching("Stopped watching; the run goes on.", *following):
            status = run.wait("done", progress=not (as_json or shared.is_quiet()))
    except SubmissionError as error:
        error.hint = f"the jobs are submitted; do not submit again: trtllm-hpc watch {name}"
        raise
    if status.state.final and any(not stage.final for stage in status.stages) and stops_server:
        run.cancel()  # the companion has ended and cannot stop the server
    code = int(status.exit_code)
    if as_json:
        shared.print_json(status)
        return code
    print_results(run.paths)
    stream = sys.stderr if code else sys.stdout
    click.echo(sentences([end_line(status)], stream=stream), file=stream)
    if not status.stages:
        click.echo("  next: submit the job file again", file=stream)
        return code
    if status.causes:
        click.echo(sentences(cause_lines(status.causes), indent="  ", stream=stream), file=stream)
    elif code:
        click.echo(f"  next: trtllm-hpc logs {name}", file=stream)
    elif not status.state.final:
        advice = f"  next: trtllm-hpc client {name} --prompt TEXT, or trtllm-hpc cancel {name}"
        shared.print_note(advice, err=False)
    click.echo(f"run folder: {run.folder}")
    return code


def print_results(paths: RunPaths) -> None:
    """Print the endpoint with the time of each phase, the answer and the benchmark, if they exist."""
    from trtllm_hpc.api.measurement import Measurement
    from trtllm_hpc.report.measurement_table import print_measurement

    for event in read_events(paths, "serve"):
        if event.name == "ready":
            ports = Endpoint(**known_fields(Endpoint, event.data)).places
            times = event.data["phases_s"].items()
            phases = ", ".join(f"{phase.replace('_', ' ')} {seconds:.1f} s" for phase, seconds in times)
            click.echo(f"endpoint: {ports} on {event.data['host']}\nphases: {phases}")
    with suppress(ValueError):
        answer = read_json(paths.answer)
        if isinstance(answer, dict):
            click.echo(f"prompt: {answer.get('prompt')!r}")
            for each in answer.get("answers", []):
                click.echo(f"answer ({each['protocol']}): {each['text']!r}")
    measured = Measurement(paths, COMPANION_MEASUREMENT)
    with suppress(RunNotFound):  # the companion has ended without a measurement
        print_measurement(measured.summary)
