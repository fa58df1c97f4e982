"""``trtllm-hpc render``, ``submit``, ``resume`` and ``watch``: from a job file to jobs, and to their end."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click

from trtllm_hpc.api.run import Run
from trtllm_hpc.cli import shared
from trtllm_hpc.engine_cache import CachedEngine
from trtllm_hpc.errors import RunNotFound, SubmissionError
from trtllm_hpc.logs.causes.explain import cause_lines
from trtllm_hpc.logs.snapshot import RunSnapshot, readable_plan
from trtllm_hpc.paths import COMPANION_MEASUREMENT, RunPaths, call_name, read_json
from trtllm_hpc.report.status import end_line, engine_lines
from trtllm_hpc.runs.endpoint import was_submitted
from trtllm_hpc.runs.status import RunState
from trtllm_hpc.runtime.records import Endpoint, known_fields, read_events

watch_option = click.option(
    "--wait",
    is_flag=True,
    help="Follow the run to its end (or until only the server is left); exit with the code of what failed.",
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
    """What the cache has; ``None`` for a run that needs no engine from it."""


@click.command("render")
@shared.job_options
@shared.json_option
def render_command(
    job_file: Path, cluster: str, settings: tuple[str, ...], runs: Path | None, as_json: bool
) -> None:
    """Write the run folder of JOB with all its scripts; submit nothing.

    Needs no Slurm on this machine. The scripts are those that `submit` would
    submit, byte for byte.

    \b
    Examples:
      trtllm-hpc render job.yaml --cluster pyxis
      trtllm-hpc render qwen3-8b --cluster pyxis --set model.path=/scratch/models/Qwen3-8B
      trtllm-hpc render job.yaml --set serve.nodes=2 --runs /scratch/$USER/runs
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
    click.echo(by_hand(run.paths))


def by_hand(paths: RunPaths) -> str:
    """Return the commands that do what ``submit`` does."""
    plan = readable_plan(paths)
    lines = [f"  cd {shlex.quote(str(paths.folder))}"]
    if plan.slurm_conf:
        lines.append(f"  export SLURM_CONF={shlex.quote(plan.slurm_conf)}")
    for stage in plan.stages:
        script = f"scripts/{stage.name}.sbatch"
        if plan.scheduler == "local":
            lines.append(f"  bash {script}{' &' * (stage.name == 'serve')}")
            continue
        conditions = ",".join(f"{it.kind}:${it.stage}" for it in stage.after)
        option = f" --kill-on-invalid-dep=yes --dependency={conditions}" if conditions else ""
        # Of JOBID;CLUSTER, which sbatch prints with --clusters, a dependency takes the number.
        cut = " | cut -d\\; -f1" if stage.first.cluster else ""
        lines.append(f"  {stage.name}=$(sbatch --parsable{option} {script}{cut})")
    return "\n".join(lines)


@click.command("submit")
@shared.job_options
@watch_option
@shared.ignore_option
@shared.json_option
def command(
    job_file: Path,
    cluster: str,
    settings: tuple[str, ...],
    runs: Path | None,
    wait: bool,
    ignore: tuple[str, ...],
    as_json: bool,
) -> int:
    """Render JOB and submit its jobs: build (if anything is), serve, companion.

    The scripts in the run folder are submitted unchanged, chained by Slurm
    dependencies. Without --wait the command returns at once. If a check of
    `doctor` fails, nothing is submitted. The companion stops the server when it
    has measured, unless serve.keep_running is true.

    JOB may be the folder of a run, or its lock.json: then the run is repeated,
    with a warning for all that is not as it was. Secrets are not in it: export
    the variables that are asked for.

    \b
    Examples:
      trtllm-hpc submit job.yaml --cluster mysite.yaml --wait
      trtllm-hpc submit job.yaml --cluster mysite.yaml --set serve.keep_running=true
      trtllm-hpc submit tiny-llama --cluster sandbox --wait
      trtllm-hpc submit runs/tiny-llama-20260101-120000-1a2b/lock.json --wait

    \b
    Exit codes: 3 job file or profile, 4 rendering, 5 submission, 6 build,
    7 start, 8 not ready in time, 9 request, 10 measurement, 11 cancelled,
    12 a job was lost, 18 the answers fail their gate.
    """
    from trtllm_hpc.api.jobs import submit

    run = submit(job_file, cluster, settings, runs, ignored_checks=ignore, on_warning=shared.print_warning)
    if not (as_json and wait):
        _print_submitted(run, run.jobs, engine_lines(run.engine), as_json=as_json, watched=wait)
    return _watch(run, as_json=as_json) if wait else 0


@click.command("resume")
@shared.run_argument
@watch_option
def resume_command(run: RunPaths, runs: Path | None, wait: bool) -> int:
    """Submit again the stages of RUN that have not ended well, in the same run folder.

    Stages that have completed are not repeated, but a companion needs its server
    again. The scripts are those in the run folder, with what you have changed in
    them. What the earlier attempt wrote is kept in attempts/. A run whose jobs have
    not all ended is refused.

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
    """Follow RUN live until nothing but its server is left, as 'submit --wait' does.

    From any login node, and after Ctrl-C: the stages with the time they have run
    and have left, the ranks, the last lines of the log, and a benchmark's
    requests per second. The exit code is that of what failed. Ctrl-C ends the
    view and leaves the run alone.

    \b
    Examples:
      trtllm-hpc watch
      trtllm-hpc watch tiny-llama
      trtllm-hpc watch latest --json     nothing until the end, then as 'status --json'
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
    """Slurm's job id of each stage; with the profile ``local`` the process id."""
    engine: CachedEngine | None
    """What the cache has; ``None`` for a run that needs no engine from it."""


def _print_submitted(
    run: Run, jobs: Mapping[str, str], lines: Sequence[str], *, as_json: bool, watched: bool
) -> None:
    """Print which jobs were submitted, ``lines`` about the run and, unless ``watched``, what to type."""
    if as_json:
        shared.print_json(SubmittedRun(run.id, str(run.folder), dict(jobs), run.engine))
        return
    click.echo(f"run {run.id}\n  folder {run.folder}")
    unit = "process" if RunSnapshot(run.paths).is_local else "job"
    for line in (*lines, *(f"{stage}: {unit} {job}" for stage, job in jobs.items())):
        click.echo(f"  {line}")
    if not watched:
        name = call_name(run.paths)
        click.echo(f"next: trtllm-hpc status {name}, or trtllm-hpc logs {name} --follow")


def _watch(run: Run, *, as_json: bool) -> int:
    """Follow a run until nothing but its server is left, print its end, and return the exit code."""
    name, stops_server = call_name(run.paths), run.job.stops_server
    following = f"trtllm-hpc watch {name}", f"trtllm-hpc cancel {name}"
    try:
        with shared.detaching("Stopped watching; the run goes on.", *following):
            status = run.wait("done", progress=not as_json)
    except SubmissionError as error:
        error.hint = f"the jobs are submitted, do not submit again: trtllm-hpc watch {name}"
        raise
    if status.state.final and any(not stage.final for stage in status.stages) and stops_server:
        run.cancel()  # the companion is gone and cannot stop the server any more
    code = int(status.exit_code)
    if as_json:
        shared.print_json(status)
        return code
    print_results(run.paths)
    stream = sys.stderr if code else sys.stdout
    click.echo(end_line(status), file=stream)
    if not status.stages:
        click.echo("  next: trtllm-hpc submit the job file again", file=stream)
        return code
    if status.causes:
        click.echo("\n".join(f"  {line}" for line in cause_lines(status.causes)), file=stream)
    elif code:
        click.echo(f"  next: trtllm-hpc logs {name}", file=stream)
    elif not status.state.final:
        click.echo(f"  next: trtllm-hpc client {name} --prompt TEXT, or trtllm-hpc cancel {name}")
    click.echo(f"run folder: {run.folder}")
    return code


def print_results(paths: RunPaths) -> None:
    """Print the endpoint with the time of each phase, the answer and the benchmark, as far as they exist."""
    from trtllm_hpc.api.measurement import Measurement
    from trtllm_hpc.report.measurement_table import print_measurement

    for event in read_events(paths, "serve"):
        if event.name == "ready":
            ports = Endpoint(**known_fields(Endpoint, event.data)).places
            spans = event.data["phases_s"].items()
            phases = ", ".join(f"{name.replace('_', ' ')} {seconds:.1f} s" for name, seconds in spans)
            click.echo(f"endpoint: {ports} on {event.data['host']}\nphases: {phases}")
    with suppress(ValueError):
        answer = read_json(paths.answer)
        if isinstance(answer, dict):
            click.echo(f"prompt: {answer.get('prompt')!r}")
            for item in answer.get("answers", []):
                click.echo(f"answer ({item['protocol']}): {item['text']!r}")
    measured = Measurement(paths, COMPANION_MEASUREMENT)
    with suppress(RunNotFound):  # the companion ended before it measured
        print_measurement(measured.summary)
