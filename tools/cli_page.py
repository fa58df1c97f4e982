"""``docs/reference/cli.md``: every command with usage, options and examples, from the program's own help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from trtllm_hpc.cli import UNLISTED, command

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"
_WHOLE = "\b"
"""Click's mark of a paragraph that keeps its lines."""
_COLUMNS = re.compile(r"(?<=\S) {2,}(?=\S)")
"""Between a command and what it is for."""


def page() -> str:
    """Return the whole document."""
    program = click.Context(command, info_name="trtllm-hpc")
    pages = [
        section
        for name in (*command.list_commands(program), *UNLISTED)
        for section in _sections(_found(command, program, name), name, program)
    ]
    return _HEAD + "".join(pages)


def _sections(found: click.Command, name: str, parent: click.Context) -> Iterator[str]:
    """Yield the section of a command, and those of the commands in it."""
    context = click.Context(found, info_name=name, parent=parent)
    title = context.command_path.removeprefix("trtllm-hpc ")
    usage = [f"{context.command_path} {' '.join(found.collect_usage_pieces(context))}".rstrip()]
    yield f"\n## {title}\n\n```text\n{usage[0]}\n```\n\n{_text(found)}{_options(found, context)}"
    if isinstance(found, click.Group):
        for each in found.list_commands(context):
            yield from _sections(_found(found, context, each), each, context)


def _found(group: click.Group, context: click.Context, name: str) -> click.Command:
    found = group.get_command(context, name)
    assert found is not None, name
    return found


def _text(found: click.Command) -> str:
    """Return a command's help as Markdown; what keeps its lines is commands to type, or a table."""
    parts = inspect.cleandoc(found.help or "").split("\n\n")
    return "\n\n".join(_paragraph(part) for part in parts) + "\n"


def _paragraph(part: str) -> str:
    if not part.startswith(_WHOLE):
        return _plain(" ".join(part.split()))
    lines = part.removeprefix(_WHOLE).strip("\n").split("\n")
    if not any(line.startswith("  ") for line in lines):
        return _plain(" ".join(line.strip() for line in lines))
    title, *rest = lines if not lines[0].startswith("  ") else ["", *lines]
    typed = [line.strip() for line in rest]
    kind = "text"
    if all(re.match(r"(\w+ .*\| )?trtllm-hpc|eval ", line) for line in typed):
        kind, typed = "console", [f"$ {_COLUMNS.sub('  # ', line)}" for line in typed]
    block = "\n".join(typed)
    return f"{_plain(title)}\n\n```{kind}\n{block}\n```".strip()


def _options(found: click.Command, context: click.Context) -> str:
    records = [record for each in found.get_params(context) if (record := each.get_help_record(context))]
    rows = [
        f"| `{_cell(name)}` | {_cell(_plain(text))} |"
        for name, text in records
        if text and "--help" not in name
    ]
    return "\n| option | |\n|---|---|\n" + "\n".join(rows) + "\n" if rows else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _plain(text: str) -> str:
    """Return text in which Markdown finds no HTML, no emphasis and no link."""
    return re.sub(r"([<*\[\]_])", r"\\\1", text) if "`" not in text else text


_HEAD = """\
# The command line

`trtllm-hpc COMMAND --help` prints the same, and `-h` is short for it. The page is made of the commands
(`make golden`). [Exit codes](json.md#exit-codes) and [JSON output](json.md) have pages of their own.

A `RUN` is a run folder, its id (or enough of its beginning to be unique), the job's name (the run of that
job that was submitted last), or `latest`, the default: the run that was submitted or resumed last. A run that
is only rendered, or that Slurm refused, is never the latest. Runs are made in, and found in, the first
of these folders: `--runs`, `$TRTLLM_HPC_RUNS`, `runs_folder` in `~/.config/trtllm-hpc/config.toml` (one line:
`runs_folder = "/scratch/me/runs"`), and `./runs`. Before `./runs`, a run is made in the profile's
`runs_folder`. `$TRTLLM_HPC_CLUSTER` sets the profile when `--cluster` is not given. A `JOB` is a file, or the
name of a shipped job file (`tiny-llama`).

The shell completes commands, options, profiles, shipped jobs, runs, sweeps and measurements:
`eval "$(_TRTLLM_HPC_COMPLETE=bash_source trtllm-hpc)"`, likewise with `zsh_source` and `fish_source`.
"""
