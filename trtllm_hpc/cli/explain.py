"""``trtllm-hpc explain``: the causes in logs, also of runs that this toolkit did not start."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from trtllm_hpc.cli.options import json_option, print_json, runs_folder, runs_option
from trtllm_hpc.errors import RunNotFound
from trtllm_hpc.logs.reading import escaped, quoted, stat_of
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runs.find import find_run, is_run

CAUSE_FOUND = 1
"""Exit code if a log tells a cause."""


@click.command("explain")
@click.argument("files", nargs=-1, metavar="[FILE|FOLDER|RUN...|-]", type=click.Path(allow_dash=True))
@runs_option
@json_option
@click.pass_context
def command(context: click.Context, files: tuple[str, ...], runs: Path | None, as_json: bool) -> int:
    """Say what went wrong in logs: of Slurm, pyxis, MPI, NCCL, CUDA, TensorRT-LLM, Triton.

    All files are read together, as the logs of one job: the likeliest cause
    comes first, then others, then what only followed from them. Without FILE,
    or with '-', the standard input is read. Of a RUN (a folder, name or 'latest')
    all logs are read, of another folder the files in it; a path that exists comes
    first. Of logs that are too long to be searched in seconds, beginning and end
    are searched. Of a run of this toolkit `status` says the same.

    \b
    Examples:
      trtllm-hpc explain slurm-4711.out
      trtllm-hpc explain logs/*.out --json
      trtllm-hpc explain latest
      journalctl -k | trtllm-hpc explain -

    \b
    Exit codes: 0 no cause was found, 1 a cause was found.
    """
    from trtllm_hpc.logs.causes.explain import cause_lines, findings, likeliest_first, of_lines
    from trtllm_hpc.logs.causes.scan import scan
    from trtllm_hpc.logs.facts import logs_facts
    from trtllm_hpc.report.formatting import format_bytes

    if not files and sys.stdin.isatty():
        raise click.UsageError("Name a log, or send one to the standard input.")
    files = tuple(name for file in files for name in _logs_in(file, runs_folder(context)))
    named = [file for file in files if file != "-"]
    facts = dict(zip(named, logs_facts([Path(file) for file in named]), strict=True))
    causes = [
        findings(scan(sys.stdin.buffer), "-") if file == "-" else facts[file].causes
        for file in files or ("-",)
    ]
    found = tuple(it.shown(quoted) for it in likeliest_first(of_lines(causes)))
    if as_json:
        print_json(found)
    elif found:
        click.echo("\n".join(cause_lines(found, places=True)))
    else:
        click.echo("No cause that is known here.")
        for file in named:
            if (error := facts[file].first_error) is not None:
                click.echo(f"  looks like an error: {escaped(file)}: {quoted(error)}")
            if unread := facts[file].unread_bytes:
                click.echo(f"  not searched: {format_bytes(unread)} in the middle of {escaped(file)}")
    return CAUSE_FOUND if found else 0


def _logs_in(name: str, runs: Path) -> list[str]:
    """Return the file itself, or the logs in a folder or of a run; raises click.UsageError without any."""
    folder = Path(name)
    if name != "-" and stat_of(folder) is None:
        try:
            folder = find_run(name, runs).folder
        except RunNotFound as error:
            raise click.UsageError(f"There is no file or folder {name!r}. {error.message}") from None
    if not folder.is_dir():
        return [name]
    if is_run(folder):
        folder = RunPaths(folder).logs
    found = sorted(str(file) for file in folder.rglob("*") if file.is_file())
    if not found:
        raise click.UsageError(f"{folder} has no file in it: name a log, or a run.")
    return found
