"""Tables of the options of one program in one release."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from trtllm_hpc.report.tables import plain_table, print_table
from trtllm_hpc.tensorrt_llm.releases import Command, Option, OptionHistory
from trtllm_hpc.tensorrt_llm.releases.data_files import parsed

_NONE = "-"
_MANY = 6
"""Choices beyond these are counted, not listed."""


def command_record(command: Command) -> dict[str, Any]:
    """A program's options as plain JSON types."""
    return {
        "name": command.name,
        "family": command.family,
        "release": command.release,
        "file": command.file,
        "status": command.status,
        "source": command.source,
        "options": [_option_record(option) for option in command.options.values()],
        "not_in_this_release": [asdict(history) for history in elsewhere(command)],
        "subcommands": [command_record(part) for part in command.subcommands.values()],
    }


def _option_record(option: Option) -> dict[str, Any]:
    record = asdict(option)
    return {**record, "choices": list(option.choices), "aliases": list(option.aliases)}


def elsewhere(command: Command) -> Iterator[OptionHistory]:
    """Options that other releases of the program have and this one lacks."""
    for name, history in command.histories.items():
        if name == history.name and name not in command.options:
            yield history


def print_command(command: Command) -> None:
    """Print every option, and those of other releases."""
    whose = f" for {command.family}" if command.family else ""
    print(f"{command.name}{whose} of TensorRT-LLM {command.release}")
    print(f"  list: {command.status}")
    print(f"  source: {command.source}")
    print()
    table = plain_table("option", "takes", "default", "remarks")
    for option in command.options.values():
        table.add_row(
            ", ".join((option.name, *option.aliases)), _takes(option), _default(option), _remarks(option)
        )
    print_table(table)
    missing = list(elsewhere(command))
    if missing:
        print()
        table = plain_table("not in this release", "", "instead")
        for history in missing:
            instead = history.replaced_by or history.note or _NONE
            table.add_row(history.name, _when(command, history), instead)
        print_table(table)
    for part in command.subcommands.values():
        print()
        print_command(part)


def _takes(option: Option) -> str:
    if option.form == "flag":
        return "nothing"
    value = "|".join(option.choices[:_MANY]) if option.choices else "a value"
    more = len(option.choices) - _MANY
    value += f"|… ({more} more)" if more > 0 else ""
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
