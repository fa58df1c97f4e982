"""Tables of TensorRT-LLM's releases and of the options of their programs."""

from __future__ import annotations

from textwrap import fill

from trtllm_hpc.report.tables import NARROW, Table, print_table, terminal_width
from trtllm_hpc.tensorrt_llm.releases.commands import (
    BY_FAMILY,
    Command,
    Option,
    OptionHistory,
    commands_of,
    families_with,
)
from trtllm_hpc.tensorrt_llm.releases.data_files import parsed
from trtllm_hpc.tensorrt_llm.releases.release import Release

_NONE = "-"
_MANY = 6
"""Choices beyond these are counted, not listed."""


def print_release(release: Release) -> None:
    """Print the facts of a release and its programs."""
    facts = {
        "containers": ", ".join(f"{tag}-trtllm-python-py3" for tag in release.tags) or "none is known",
        "TensorRT": release.tensorrt,
        "Python": release.python,
        "CUDA": release.cuda,
        "backends": ", ".join(release.backends),
        "examples": release.paths.examples,
        "templates": release.paths.all_models,
        "source": release.source,
        "note": release.note,
    }
    print(f"TensorRT-LLM {release.version}")
    for name, value in facts.items():
        if value is not None:
            print(f"  {name}: {value}")
    print()
    table = Table("program", "options", "list", right=("options",))
    for command in commands_of(release.version):
        table.add_row(command.name, str(len(command.options)), command.status)
    print_table(table)
    for name in BY_FAMILY:
        families = families_with(release.version, name)
        if families:
            width = min(terminal_width() or NARROW, NARROW)
            print(fill(f"{name} exists for: {', '.join(families)}", width, initial_indent="\n"))


def print_command(command: Command) -> None:
    """Print every option, and those of other releases."""
    suffix = f" for {command.family}" if command.family else ""
    print(f"{command.name}{suffix} of TensorRT-LLM {command.release}")
    print(f"  list: {command.status}")
    print(f"  source: {command.source}")
    print()
    table = Table("option", "takes", "default", "remarks")
    for option in command.options.values():
        table.add_row(
            ", ".join((option.name, *option.aliases)), _takes(option), _default(option), _remarks(option)
        )
    print_table(table)
    if command.not_in_this_release:
        print()
        table = Table("not in this release", "", "instead")
        for history in command.not_in_this_release:
            instead = history.replaced_by or history.note or _NONE
            table.add_row(history.name, _when(command, history), instead)
        print_table(table)
    for part in command.subcommands.values():
        print()
        print_command(part)


def _takes(option: Option) -> str:
    if option.form == "flag":
        return "nothing"
    value = " | ".join(option.choices[:_MANY]) if option.choices else "a value"
    more = len(option.choices) - _MANY
    value += f" | … ({more} more)" if more > 0 else ""
    return f"{value} …" if option.form == "list" else value


def _default(option: Option) -> str:
    if option.form == "flag":
        return "off"
    return _NONE if option.default is None or option.default == "" else str(option.default)


def _remarks(option: Option) -> str:
    parts = (
        "Required." if option.required else None,
        option.ignored,
        # Its first half says the default, which has a column of its own.
        option.changed.partition(": ")[2] if option.changed else None,
        "The value may be left out." if option.bare else None,
        option.note,
    )
    return " ".join(part for part in parts if part)


def _when(command: Command, history: OptionHistory) -> str:
    if parsed(history.first) > parsed(command.release):
        return f"from {history.first} on"
    if history.gone is not None and parsed(history.gone) <= parsed(command.release):
        return f"{history.first} to {history.last}"
    return f"from {history.first} on, but not here"
