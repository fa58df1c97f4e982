"""``trtllm-hpc explain``: the causes in logs, also of runs that this toolkit did not start."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, cast

import click

from trtllm_hpc.cli.options import json_option, print_json, runs_folder, runs_option
from trtllm_hpc.errors import ExitCode, RunNotFound
from trtllm_hpc.logs.causes.explain import Finding, cause_lines, likeliest_first, of_lines
from trtllm_hpc.logs.causes.table import Degree, Kind, own_tables, read_table
from trtllm_hpc.logs.facts import LogFacts, facts_of_stream, logs_facts, nearest_to_an_error
from trtllm_hpc.logs.packed import opened
from trtllm_hpc.logs.reading import escaped, quoted, stat_of
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.report.formatting import format_bytes
from trtllm_hpc.runs.find import find_run, is_run

_EXIT_CODES = {Degree.KNOWN: 1, Degree.LIKELY: 3, Degree.FIRST_ERROR: 4}


@click.command("explain")
@click.argument("files", nargs=-1, metavar="[FILE|FOLDER|RUN...|-]", type=click.Path(allow_dash=True))
@click.option(
    "--why", is_flag=True, help="Also list every line that was a candidate, and what it was taken for."
)
@click.option(
    "--check",
    metavar="FILE",
    type=click.Path(exists=True, path_type=Path),
    help="Check a table of causes of your own.",
)
@runs_option
@json_option
@click.pass_context
def command(
    context: click.Context,
    files: tuple[str, ...],
    why: bool,
    check: Path | None,
    runs: Path | None,
    as_json: bool,
) -> int:
    """Say what went wrong in logs: of Slurm, pyxis, MPI, NCCL, CUDA, TensorRT-LLM, Triton.

    All files are read together, as the logs of one job: the likeliest cause
    comes first, then others, then what only followed from them. 'cause' is said
    where a line means this and nothing else, 'likely cause' where it shows the
    kind of failure, 'first error' where nothing more is known of it than that it
    does not follow from another error. What stands before a server was ready
    does not count. Without FILE, or with '-', the standard input is read. Of a
    RUN (its folder, its name or 'latest') all logs are read, of another folder
    the files in it; a path that exists comes before a run of the same name. Logs
    may be compressed (gzip, bzip2, xz, zstd) or in UTF-16. Of logs that are too
    long to be searched in seconds, beginning and end are searched. Of a run of
    this toolkit `status` says the same.

    Causes of your own stand in ~/.config/trtllm-hpc/causes/*.toml, your site's in
    /etc/trtllm-hpc/causes, in the form of the table in docs/reference/causes.md.

    \b
    Examples:
      trtllm-hpc explain slurm-4711.out
      trtllm-hpc explain logs/*.out --json
      trtllm-hpc explain latest --why
      journalctl -k | trtllm-hpc explain -
      trtllm-hpc explain --check ~/.config/trtllm-hpc/causes/site.toml

    \b
    Exit codes: 0 no cause was found, 1 a known cause, 3 a likely cause, 4 a first
    error; 2 a file cannot be read.
    """
    if check is not None:
        entries = read_table(check)
        click.echo(f"{check}: {len(entries)} entries, no error.")
        return 0
    if not files and sys.stdin.isatty():
        raise click.UsageError("Name a log, or send one to the standard input.")
    logs, unread = _logs_in(files or ("-",), runs_folder(context))
    for problem in [*unread, *map(str, own_tables()[1])]:
        click.echo(f"error: {escaped(problem)}", err=True)
    with tempfile.TemporaryFile() as piped:
        if "-" in logs:
            shutil.copyfileobj(sys.stdin.buffer, piped)
        facts, found = _explained(logs, cast(BinaryIO, piped))
        if as_json:
            print_json(found)
        elif found:
            click.echo("\n".join(cause_lines(found, places=True)))
        else:
            click.echo("No cause was found.")
            for name, fact in zip(logs, facts, strict=True):
                log = cast(BinaryIO, piped) if name == "-" else opened(Path(name))
                _say_nearest(name, fact, log, alone=len(logs) == 1)
    if why and not as_json:
        _say_why(logs, facts)
    root = next((it for it in found if it.kind is Kind.ROOT), next(iter(found), None))
    return int(ExitCode.USAGE) if not logs else 0 if root is None else _EXIT_CODES[root.degree]


def _explained(logs: Sequence[str], piped: BinaryIO) -> tuple[list[LogFacts], tuple[Finding, ...]]:
    """Return what each log shows, and the causes of all together; ``piped`` is read for the name ``-``."""
    of_files = iter(logs_facts([Path(it) for it in logs if it != "-"]))
    facts = [facts_of_stream(piped, it) if it == "-" else next(of_files) for it in logs]
    # A run is explained because it has failed; the program of another log may have gone on.
    of_run = [is_run(Path(name).parent.parent) for name in logs]
    causes = [() if it.survived and not run else it.causes for it, run in zip(facts, of_run, strict=True)]
    return facts, tuple(it.shown(quoted) for it in likeliest_first(of_lines(causes)))


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
    if facts.unread_bytes:
        click.echo(f"  not searched: {format_bytes(facts.unread_bytes)} in the middle of {escaped(name)}")


def _say_why(logs: Sequence[str], facts: Sequence[LogFacts]) -> None:
    click.echo("\nThe lines that were looked at, and what each was taken for:")
    for name, fact in zip(logs, facts, strict=True):
        for one in fact.candidates:
            role = one.degree.value if one.kind is Kind.ROOT else one.kind.value
            click.echo(f"  {escaped(name)}:{one.line or '?'}: {role}, {one.id}: {quoted(one.match)}")


def _logs_in(names: Sequence[str], runs: Path) -> tuple[list[str], list[str]]:
    """Return the files themselves, the logs in folders and of runs; and what cannot be read, with reasons."""
    logs: list[str] = []
    unread: list[str] = []
    for name in names:
        folder = Path(name)
        if name != "-" and stat_of(folder) is None:
            try:
                folder = find_run(name, runs).folder
            except RunNotFound as error:
                unread.append(f"There is no file or folder {name!r}. {error.message}")
                continue
        events = [*RunPaths(folder).events.glob("*.jsonl")] if is_run(folder) else []
        if is_run(folder):
            RunSnapshot(RunPaths(folder)).use_causes_of_site()
            folder = RunPaths(folder).logs
        found = sorted(str(it) for it in folder.rglob("*") if it.is_file()) if folder.is_dir() else [name]
        found += [str(it) for it in events if b'"submission_interrupted"' in it.read_bytes()]
        if not found:
            unread.append(f"{folder} has no file in it: name a log, or a run.")
        unread += [f"{it} cannot be read: {why}" for it in found if (why := _why_unreadable(it)) is not None]
        logs += [it for it in found if _why_unreadable(it) is None]
    return logs, unread


def _why_unreadable(name: str) -> str | None:
    if name == "-":
        return None
    try:
        opened(Path(name)).close()
    except OSError as error:
        return error.strerror or str(error)
    return None
