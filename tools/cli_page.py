"""Write ``docs/reference/cli.md``: usage, options and examples of every command, from the program's help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from trtllm_hpc.cli import UNLISTED, command

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"
_WHOLE = "\b"
"""Click's mark of a paragraph whose lines are not joined."""
_COLUMNS = re.compile(r"(?<=\S) {2,}(?=\S)")
"""Spaces between a command and its explanation."""


def page() -> str:
    """Return the page as Markdown."""
    program = click.Context(command, info_name="trtllm-hpc")
    pages = [
        section
        for name in (*command.list_commands(program), *UNLISTED)
        for section in _sections(_command(command, program, name), name, program)
    ]
    return _HEAD + "".join(pages)


def _sections(section: click.Command, name: str, parent: click.Context) -> Iterator[str]:
    """Yield the section of a command, and the sections of its subcommands."""
    context = click.Context(section, info_name=name, parent=parent)
    title = context.command_path.removeprefix("trtllm-hpc ")
    usage = f"{context.command_path} {' '.join(section.collect_usage_pieces(context))}".rstrip()
    yield f"\n## {title}\n\n```text\n{usage}\n```\n\n{_text(section)}{_options(section, context)}"
    if isinstance(section, click.Group):
        for subcommand in section.list_commands(context):
            yield from _sections(_command(section, context, subcommand), subcommand, context)


def _command(group: click.Group, context: click.Context, name: str) -> click.Command:
    subcommand = group.get_command(context, name)
    assert subcommand is not None, name
    return subcommand


def _text(section: click.Command) -> str:
    """Return a command's help as Markdown. Paragraphs that keep their lines become blocks of code."""
    parts = inspect.cleandoc(section.help or "").split("\n\n")
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


def _options(section: click.Command, context: click.Context) -> str:
    parameters = section.get_params(context)
    records = [record for each in parameters if (record := each.get_help_record(context))]
    rows = [
        f"| `{_cell(name)}` | {_cell(_plain(text))} |"
        for name, text in records
        if text and "--help" not in name
    ]
    return "\n| option | |\n|---|---|\n" + "\n".join(rows) + "\n" if rows else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _plain(text: str) -> str:
    """Escape a text, so that Markdown shows the text without HTML, emphasis or links."""
    return re.sub(r"([<*\[\]_])", r"\\\1", text) if "`" not in text else text


_HEAD = """\
# The command line

`trtllm-hpc help COMMAND`, `trtllm-hpc COMMAND --help` and `-h` print the text of this page (`make golden`).
`client` and `bench run` print all options with `--help-all`. [JSON output and exit
codes](json.md) have a page of their own.

A `RUN` is a run folder, the beginning of the run's ID, the job's name (the last submitted run of the job),
or `latest`, the default: the last submitted or resumed run. A run that is only rendered, or that Slurm
refused, is never the latest. New runs go to, and commands search, the first of these folders: `--runs`,
`$TRTLLM_HPC_RUNS`, `runs_folder` in `~/.config/trtllm-hpc/config.toml` (one line: `runs_folder =
"/scratch/me/runs"`), for new runs `runs_folder` of the profile, and `./runs`. `$TRTLLM_HPC_CLUSTER` is the
default of `--cluster`. A `JOB` is a file, or the name of a shipped job file (`tiny-llama`).

Each command accepts `-v` and `-q`, as `trtllm-hpc` does before the command: `-v` (`--verbose`) prints each
Slurm command on standard error before it runs; `-q` (`--quiet`) leaves out progress, notes and advice, and
keeps results, warnings and errors. `-V` prints the version.

`trtllm-hpc completion bash`, `zsh` or `fish` prints a script with which the shell completes commands,
options, profiles, shipped jobs, runs, sweeps and measurements; its last lines say how to install it.
"""
