"""``trtllm-hpc explain``: the causes in logs, also of runs that this toolkit did not start."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from trtllm_hpc.cli.options import json_option, print_json

CAUSE_FOUND = 1
"""Exit code if a log tells a cause."""


@click.command("explain")
@click.argument(
    "files", nargs=-1, metavar="[FILE...|-]", type=click.Path(exists=True, dir_okay=False, allow_dash=True)
)
@json_option
def command(files: tuple[str, ...], as_json: bool) -> int:
    """Say what went wrong in logs: of Slurm, pyxis, MPI, NCCL, CUDA, TensorRT-LLM, Triton.

    All files are read together, as the logs of one job: the likeliest cause
    comes first, then others, then what only followed from them. Without FILE,
    or with '-', the standard input is read. Of logs that are too long to be
    searched in seconds, beginning and end are searched. Of a run of this toolkit
    `status` says the same.

    \b
    Examples:
      trtllm-hpc explain slurm-4711.out
      trtllm-hpc explain logs/*.out --json
      journalctl -k | trtllm-hpc explain -

    \b
    Exit codes: 0 no cause was found, 1 a cause was found.
    """
    from trtllm_hpc.logs.causes.explain import cause_lines, findings, likeliest_first, of_lines
    from trtllm_hpc.logs.causes.scan import scan
    from trtllm_hpc.logs.facts import logs_facts
    from trtllm_hpc.logs.reading import escaped, quoted
    from trtllm_hpc.report.formatting import format_bytes

    if not files and sys.stdin.isatty():
        raise click.UsageError("Name a log, or send one to the standard input.")
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
