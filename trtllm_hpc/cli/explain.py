"""``trtllm-hpc explain``: the causes in logs, also of runs that this toolkit did not start."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, cast

import click

from trtllm_hpc.cli.shared import json_option, print_json, runs_folder, runs_option
from trtllm_hpc.errors import ExitCode, RunNotFound, SubmissionError
from trtllm_hpc.logs.causes.explain import Explanation, Finding, cause_lines, likeliest_first, of_lines
from trtllm_hpc.logs.causes.table import Degree, Kind, tables
from trtllm_hpc.logs.facts import (
    LogFacts,
    facts_of_stream,
    logs_facts,
    nearest_to_an_error,
    suspicious_lines,
)
from trtllm_hpc.logs.files import list_logs, stage_of
from trtllm_hpc.logs.reading import escaped, opened, quoted, stat_of
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import RunPaths, call_name
from trtllm_hpc.report.bundle import bundle
from trtllm_hpc.runs.causes import UNKNOWN
from trtllm_hpc.runs.find import find_run, is_run
from trtllm_hpc.runs.status import RunState, RunStatus, job_ids, status_or_files, unanswered_status

_EXIT_CODES = {Degree.KNOWN: 1, Degree.LIKELY: 3, Degree.FIRST_ERROR: 4}


@click.command("explain")
@click.argument("files", nargs=-1, metavar="[FILE|FOLDER|RUN...|-]", type=click.Path(allow_dash=True))
@runs_option
@click.option(
    "--bundle",
    "bundle_file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the answer with its evidence, versions, plan, timeline and last lines to FILE, at most 64 KiB"
    " without keys, prompts and names of users: to paste into an issue or a chat.",
)
@json_option
@click.pass_context
def command(
    context: click.Context, files: tuple[str, ...], runs: Path | None, bundle_file: Path | None, as_json: bool
) -> int:
    """Say what went wrong in logs: of Slurm, pyxis, MPI, NCCL, CUDA, TensorRT-LLM, Triton.

    All files are read together, as the logs of one job: the likeliest cause
    comes first, then others, then what only followed from them. 'cause' is said
    where only this cause writes such a line and no other error stands before it,
    'likely cause' where it shows the kind of failure, 'first error' where nothing
    more is known of it than that it does not follow from another error. Below the
    answer stand the five most suspicious lines, so that you can judge it yourself.
    What stands before a server was ready does not count. Without FILE the latest
    run is explained, or what is piped in; '-' is the standard input. A RUN (its
    folder, its name or 'latest') stands for what `status` knows and the causes
    that it shows, or for all its logs if `status` shows none,
    with those of the jobs that failed before the present one (serve.renew); a run
    that has completed or was cancelled has no cause. Another folder stands for the
    files in it; a path that exists comes before a run of the same name. Logs may
    be compressed (gzip, bzip2, xz, zstd) or in UTF-16. All of each log is read.

    Causes of your own stand in ~/.config/trtllm-hpc/causes/*.toml, your site's in
    /etc/trtllm-hpc/causes, in the form of the table in docs/reference/causes.md.

    \b
    Examples:
      trtllm-hpc explain
      trtllm-hpc explain slurm-4711.out
      trtllm-hpc explain logs/*.out --json
      journalctl -k | trtllm-hpc explain -
      trtllm-hpc explain latest --bundle failure.md

    \b
    Exit codes: 0 no cause was found, 1 a known cause, 3 a likely cause, 4 a first
    error; 2 a file cannot be read.
    """
    logs, told, unread = _logs_in(files or ("-" if _is_piped() else "latest",), runs_folder(context))
    for problem in [*unread, *map(str, tables().own[1])]:
        click.echo(f"error: {escaped(problem)}", err=True)
    with tempfile.TemporaryFile() as piped:
        if "-" in logs:
            shutil.copyfileobj(sys.stdin.buffer, piped)
        of_files = iter(logs_facts([Path(it) for it in logs if it != "-"]))
        stream = cast(BinaryIO, piped)
        facts = [facts_of_stream(stream, it) if it == "-" else next(of_files) for it in logs]
        # A run is explained because it has failed; the program of another log may have gone on. Logs of a run
        # are in its logs/ or attempts/N/logs/.
        of_run = [any(is_run(folder) for folder in Path(name).parents[1:4:2]) for name in logs]
        causes = [() if it.survived and not run else it.causes for it, run in zip(facts, of_run, strict=True)]
        of_logs = [_named(it).shown(quoted) for it in likeliest_first(of_lines(causes))]
        found = [*(it for _, status in told for it in status.causes), *of_logs]
        # What status knows has a run's logs as its evidence.
        of_runs = [str(log.path) for run, _ in told for log in list_logs(run) if log.size_bytes]
        of_runs = [name for name in of_runs if name not in logs]
        facts_of_runs = logs_facts([Path(it) for it in of_runs])
        answer = [f"{status.state.value}: {status.sentence}" for _, status in told]
        answer += cause_lines(found, places=True)
        hosts = {str(it.path): it.host for run, _ in told for it in list_logs(run) if it.host is not None}
        clues = suspicious_lines([*facts_of_runs, *facts], [*of_runs, *logs], hosts) if found else []
        if clues:
            answer += ["most suspicious lines:", *(it.quotation for it in clues)]
        elif not found and logs:
            answer.append("No cause was found.")
        if as_json:
            print_json(Explanation(found, clues))
        else:
            click.echo("\n".join(map(escaped, answer)))
            for name, fact in () if found else zip(logs, facts, strict=True):
                log = stream if name == "-" else opened(Path(name))
                _say_nearest(name, fact, log, alone=len(logs) == 1)
    if bundle_file is not None:
        run = next((run for run, _ in told), None) or next(filter(None, map(_run_of, logs)), None)
        bundle_file.write_text(bundle(run, answer, [*facts_of_runs, *facts], [*of_runs, *logs]), "utf-8")
    root = next((it for it in found if it.kind is Kind.ROOT), next(iter(found), None))
    return int(ExitCode.USAGE) if not (logs or told) else 0 if root is None else _EXIT_CODES[root.degree]


def _is_piped() -> bool:
    """Return whether the standard input is a pipe or a file; in a batch job it is /dev/null."""
    try:
        return not stat.S_ISCHR(os.fstat(sys.stdin.fileno()).st_mode)
    except (OSError, ValueError, AttributeError):  # it is closed
        return False


def _named(finding: Finding) -> Finding:
    """Return a finding in the log of a run with the run's name, and its job, in what to do."""
    run = _run_of(finding.file or "")
    if run is None:
        return finding
    log = Path(finding.file or "")
    stage = stage_of(log.name.partition("_")[0])
    failed = () if run.renewal is None else run.renewal.failed
    before = {str(job["attempt"]): job["job_id"] for job in failed}
    job = job_ids(RunSnapshot(RunPaths(log.parents[1]))).get(stage) or before.get(log.parents[1].name)
    return finding.naming(call_name(run.paths), job)


def _run_of(log: str) -> RunSnapshot | None:
    """Return the run whose log this is."""
    # attempts/N may hold a copy of jobs.json, and look like a run.
    folder = next(filter(is_run, reversed(Path(log).parents[1:4:2])), None)
    return None if folder is None else RunSnapshot(RunPaths(folder))


def _say_nearest(name: str, facts: LogFacts, log: BinaryIO, *, alone: bool) -> None:
    """Print the lines of a log without a cause that are nearest to an error; of a single log in any case."""
    with log:
        lines = [it.match for it in facts.causes] or nearest_to_an_error(log, only=not alone)
    if not lines:
        if alone:
            click.echo(f"{escaped(name)} is empty.")
        return
    what = "errors of {}, after which it goes on" if facts.survived else "lines of {} nearest to an error"
    click.echo(f"The {what.format(escaped(name))}:")
    click.echo("\n".join(f"  | {quoted(line)}" for line in lines))


def _logs_in(
    names: Sequence[str], runs: Path
) -> tuple[list[str], list[tuple[RunSnapshot, RunStatus]], list[str]]:
    """Return the logs to search, the status of each run that says enough, and what cannot be read and why.

    The logs are the files themselves, and those in folders and of other runs.
    """
    logs: list[str] = []
    told: list[tuple[RunSnapshot, RunStatus]] = []
    unread: list[str] = []
    for name in names:
        folder = Path(name)
        if name != "-" and stat_of(folder) is None:
            try:
                folder = find_run(name, runs).folder
            except RunNotFound as error:
                unread.append(f"There is no file or folder {name!r}. {error.message}")
                continue
        folders, refusals = [folder], list[str]()
        if is_run(folder):
            run = RunSnapshot(RunPaths(folder))
            run.use_causes_of_site()
            try:
                status, _ = status_or_files(run.paths)
            except SubmissionError:
                status = unanswered_status(run)
            status = replace(status, causes=tuple(it for it in status.causes if it.id != UNKNOWN))
            has_ended_well = status.state in (RunState.COMPLETED, RunState.CANCELLED)
            if (
                status.causes
                or status.state is RunState.FAILED
                or (has_ended_well and not status.failed_jobs)
            ):
                told.append((run, status))
            if status.causes or (has_ended_well and not status.failed_jobs):
                continue
            before = reversed(status.failed_jobs)
            attempts = [RunPaths(run.paths.attempts / str(job.attempt)) for job in before]
            folders = [paths.logs for paths in (run.paths, *attempts)]
            for file in _files_below(run.paths.events):
                with suppress(OSError):
                    if b'"submission_interrupted"' in Path(file).read_bytes():
                        refusals.append(file)  # it has what Slurm said to a submission
        is_folder = os.path.isdir(folder)  # noqa: PTH112 - never raises
        found = [file for each in folders for file in _files_below(each)] if is_folder else [str(folder)]
        found += refusals
        if not found:
            unread.append(f"{folder} has no file in it: name a log, or a run.")
        for it in found:
            try:
                if it != "-":
                    opened(Path(it)).close()
                logs.append(it)
            except OSError as error:
                unread.append(f"{it} cannot be read: {error.strerror or error}")
    return logs, told, unread


def _files_below(folder: Path) -> list[str]:
    return sorted(os.path.join(place, it) for place, _, files in os.walk(folder) for it in files)  # noqa: PTH118
