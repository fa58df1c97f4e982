"""``trtllm-hpc explain``: find the cause of a failure in logs, of this toolkit's runs or any other job."""

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
from trtllm_hpc.report.tables import sentences
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
    help="Write cause, evidence, versions, plan, timeline and last log lines to FILE, to attach to an issue:"
    " at most 64 KiB, without keys, prompts and user names.",
)
@json_option
@click.pass_context
def command(
    context: click.Context, files: tuple[str, ...], runs: Path | None, bundle_file: Path | None, as_json: bool
) -> int:
    """Find the cause of a failure in logs of Slurm, MPI, NCCL, CUDA, TensorRT-LLM or Triton.

    All files are read together, as the logs of one job. A FOLDER stands for its files,
    a RUN for its logs, '-' for standard input. The default is the latest run. The
    likeliest cause comes first, then other causes and consequences, then the five
    most suspicious lines as evidence.

    \b
    How sure the answer is:
      cause         only this cause writes such a line, and no error precedes it
      likely cause  the line shows the kind of failure
      first error   an unknown error that no other error explains

    Logs can be compressed (gzip, bzip2, xz, zstd). You can add causes of your own in
    ~/.config/trtllm-hpc/causes/*.toml: see docs/reference/causes.md.

    \b
    Examples:
      trtllm-hpc explain
      trtllm-hpc explain slurm-4711.out
      trtllm-hpc explain logs/*.out --json
      journalctl -k | trtllm-hpc explain -
      trtllm-hpc explain latest --bundle failure.md

    \b
    Exit codes: 0 no cause found, 1 cause, 3 likely cause, 4 first error,
    2 no file can be read.
    """
    logs, judged, unread = _logs_in(files or ("-" if _is_piped() else "latest",), runs_folder(context))
    for problem in [*unread, *map(str, tables().own[1])]:
        click.echo(f"error: {escaped(problem)}", err=True)
    with tempfile.TemporaryFile() as piped:
        if "-" in logs:
            shutil.copyfileobj(sys.stdin.buffer, piped)
        facts_of_files = iter(logs_facts([Path(name) for name in logs if name != "-"]))
        stream = cast(BinaryIO, piped)
        facts = [facts_of_stream(stream, name) if name == "-" else next(facts_of_files) for name in logs]
        # The program of a log may have survived its errors, but a run is explained because it has failed.
        # The logs of a run are in its logs/ or attempts/N/logs/.
        of_run = [any(is_run(folder) for folder in Path(name).parents[1:4:2]) for name in logs]
        causes = [
            () if fact.survived and not is_of_run else fact.causes
            for fact, is_of_run in zip(facts, of_run, strict=True)
        ]
        from_logs = [_shown(finding) for finding in likeliest_first(of_lines(causes))]
        findings = [*(finding for _, status in judged for finding in status.causes), *from_logs]
        # The evidence of a run's status is in the run's logs.
        run_logs = [str(log.path) for run, _ in judged for log in list_logs(run) if log.size_bytes]
        run_logs = [name for name in run_logs if name not in logs]
        facts_of_runs = logs_facts([Path(name) for name in run_logs])
        answer = [f"{status.state.value}: {status.sentence}" for _, status in judged]
        answer += cause_lines(findings, places=True)
        hosts = {
            str(log.path): log.host for run, _ in judged for log in list_logs(run) if log.host is not None
        }
        clues = suspicious_lines([*facts_of_runs, *facts], [*run_logs, *logs], hosts) if findings else []
        if clues:
            answer += ["most suspicious lines:", *(clue.quotation for clue in clues)]
        elif not findings and logs:
            answer.append("No cause was found.")
        if as_json:
            print_json(Explanation(findings, clues))
        else:
            if answer:
                click.echo(sentences(map(escaped, answer)))
            for name, fact in () if findings else zip(logs, facts, strict=True):
                with stream if name == "-" else opened(Path(name)) as log:
                    _print_lines(name, fact, log, alone=len(logs) == 1)
    if bundle_file is not None:
        run = next((run for run, _ in judged), None) or next(filter(None, map(_run_of, logs)), None)
        bundle_file.write_text(bundle(run, answer, [*facts_of_runs, *facts], [*run_logs, *logs]), "utf-8")
    root = next((finding for finding in findings if finding.kind is Kind.ROOT), next(iter(findings), None))
    if not (logs or judged):
        return int(ExitCode.USAGE)
    return 0 if root is None else _EXIT_CODES[root.degree]


def _is_piped() -> bool:
    """Return whether standard input is a pipe or a file. In a batch job it is /dev/null, which is neither."""
    try:
        return not stat.S_ISCHR(os.fstat(sys.stdin.fileno()).st_mode)
    except (OSError, ValueError, AttributeError):  # it is closed
        return False


def _shown(finding: Finding) -> Finding:
    """Return a finding without keys, with the name of the run and its job ID if its log belongs to a run."""
    run = _run_of(finding.file or "")
    if run is None:
        return finding.shown(quoted)
    log = Path(finding.file or "")
    stage = stage_of(log.name.partition("_")[0])
    failed = () if run.renewal is None else run.renewal.failed
    before = {str(job["attempt"]): job["job_id"] for job in failed}
    job = job_ids(RunSnapshot(RunPaths(log.parents[1]))).get(stage) or before.get(log.parents[1].name)
    return finding.shown(quoted, call_name(run.paths), job)


def _run_of(log: str) -> RunSnapshot | None:
    """Return the run that a log belongs to."""
    # The outermost folder counts: attempts/N can have a copy of jobs.json, and look like a run.
    folder = next(filter(is_run, reversed(Path(log).parents[1:4:2])), None)
    return None if folder is None else RunSnapshot(RunPaths(folder))


def _print_lines(name: str, facts: LogFacts, log: BinaryIO, *, alone: bool) -> None:
    """Print the lines of a log that look most like errors. With ``alone``, print lines in any case."""
    lines = [line.match for line in facts.causes] or nearest_to_an_error(log, only=not alone)
    if not lines:
        if alone:
            click.echo(f"{escaped(name)} is empty.")
        return
    what = "Errors that the program of {} survived" if facts.survived else "Lines of {} nearest to an error"
    click.echo(f"{what.format(escaped(name))}:")
    click.echo("\n".join(f"  | {quoted(line)}" for line in lines))


def _logs_in(
    names: Sequence[str], runs: Path
) -> tuple[list[str], list[tuple[RunSnapshot, RunStatus]], list[str]]:
    """Return the logs to search, the runs whose status explains them, and each name that cannot be read.

    A name is a file, a folder with files, or a run.
    """
    logs: list[str] = []
    judged: list[tuple[RunSnapshot, RunStatus]] = []
    unread: list[str] = []
    for name in names:
        folder = Path(name)
        if name != "-" and stat_of(folder) is None:
            try:
                folder = find_run(name, runs).folder
            except RunNotFound as error:
                no_file = "" if name == "latest" else f"There is no file or folder {name!r}."
                unread.append(no_file if "/" in name else f"{no_file} {error}".strip())
                continue
        folders, refusals = [folder], list[str]()
        if is_run(folder):
            run = RunSnapshot(RunPaths(folder))
            run.use_causes_of_site()
            try:
                status, _ = status_or_files(run.paths)
            except SubmissionError:
                status = unanswered_status(run)
            known = tuple(finding for finding in status.causes if finding.id != UNKNOWN)
            status = replace(status, causes=known)
            has_ended_well = status.state in (RunState.COMPLETED, RunState.CANCELLED)
            is_explained = status.causes or (has_ended_well and not status.failed_jobs)
            if is_explained or status.state is RunState.FAILED:
                judged.append((run, status))
            if is_explained:
                continue
            before = reversed(status.failed_jobs)
            attempts = [RunPaths(run.paths.attempts / str(job.attempt)) for job in before]
            folders = [paths.logs for paths in (run.paths, *attempts)]
            for file in _files_below(run.paths.events):
                with suppress(OSError):
                    if b'"submission_interrupted"' in Path(file).read_bytes():
                        refusals.append(file)  # it has Slurm's error message
        is_folder = os.path.isdir(folder)  # noqa: PTH112 - never raises
        files = [file for place in folders for file in _files_below(place)] if is_folder else [str(folder)]
        files += refusals
        if not files:
            unread.append(f"There are no logs in {folder}: name a log or another run.")
        for file in files:
            try:
                if file != "-":
                    opened(Path(file)).close()
                logs.append(file)
            except OSError as error:
                unread.append(f"{file} cannot be read: {error.strerror or error}")
    return logs, judged, unread


def _files_below(folder: Path) -> list[str]:
    return sorted(os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)  # noqa: PTH118
