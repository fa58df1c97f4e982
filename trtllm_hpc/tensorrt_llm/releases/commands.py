"""Upstream's programs and their options, release by release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from trtllm_hpc.tensorrt_llm.releases.data_files import (
    DATA,
    NEWER,
    UNSET,
    listed_versions,
    parsed,
    read_data,
    value_at,
)
from trtllm_hpc.tensorrt_llm.releases.families import families, family_folder

COMMANDS: Mapping[str, str] = {
    "hf_gpt_convert.py": "hf_gpt_convert",
    "hf_llama_convert.py": "hf_llama_convert",
    "build.py": "build_py",
    "convert_checkpoint.py": "convert_checkpoint",
    "trtllm-build": "trtllm_build",
    "quantize.py": "quantize",
    "hf_lora_convert.py": "hf_lora_convert",
    "trtllm-serve": "trtllm_serve",
}
"""Upstream's tools and the data file of each, in the order of use."""
_SERVE = "trtllm-serve"
BY_FAMILY = ("build.py", "convert_checkpoint.py")
"""Programs that every family of models has its own of: their data are folders, a file for each family."""

Form = Literal["flag", "value", "switch", "list"]
"""How an option is written: ``--x``; ``--x WORD``; ``--x enable|disable``; ``--x WORD [WORD ...]``."""
Value = str | int | float | bool
"""A default as upstream's parser has it; ``False`` is a flag that is off."""


@dataclass(frozen=True)
class Option:
    """One option of a command, as one release takes it."""

    name: str
    form: Form
    choices: tuple[str, ...]
    """The values it takes; empty: any."""
    default: Value | None
    """``None``: the release has none, or derives it from the model."""
    changed: str | None
    """A sentence on the defaults of other releases; ``None`` where all have the same."""
    ignored: str | None
    """Why the release takes the option and does nothing with it; ``None`` where it works."""
    source: str
    """Where the release's list was read, and how reliable it is; see ``Command.status``."""
    aliases: tuple[str, ...] = ()
    """Other spellings of the same option, such as ``-i``."""
    required: bool = False
    note: str | None = None
    bare: bool = False
    """Whether the option may stand without a value; upstream then uses one that is not ``default``."""
    type: Literal["int", "float"] | None = None
    """The number that it takes, where its default does not tell."""


@dataclass(frozen=True)
class OptionHistory:
    """Which releases have an option."""

    name: str
    first: str
    """The oldest release here that has it; a later version where none has it yet."""
    last: str | None
    """The newest that has it; ``None``: the newest release of the command still does."""
    replaced_by: str | None
    """What to write instead in releases after ``last``."""
    note: str | None
    gone: str | None = None
    """The first release without it; ``None`` as for ``last``."""


@dataclass(frozen=True)
class Command:
    """One of upstream's programs, as one release has it."""

    PRINTED = ("not_in_this_release",)

    name: str
    family: str | None
    """The model family that the list is of; ``None`` where there is one list for all."""
    release: str
    options: Mapping[str, Option]
    """By name with dashes, ``--max_batch_size``; other spellings through ``find``."""
    status: str
    """``verified``: read at this very release; else which neighbour the list was taken from, and why."""
    source: str
    file: str | None = None
    """The program: below ``examples`` for what converts and builds, else below the checkout or ``/app``."""
    subcommands: Mapping[str, Command] = field(default_factory=dict)
    """By name. Options before the name belong to this command, those after it to the sub-command."""
    default_subcommand: str | None = None
    """The sub-command that may be left out: its options are the command's own."""

    def find(self, name: str) -> Option | None:
        """The option with this name or alias."""
        if name in self.options:
            return self.options[name]
        return next((option for option in self.options.values() if name in option.aliases), None)

    @property
    def not_in_this_release(self) -> tuple[OptionHistory, ...]:
        """Options that only other releases have."""
        return tuple(
            history
            for name, history in self.histories.items()
            if name == history.name and name not in self.options
        )

    @property
    def histories(self) -> Mapping[str, OptionHistory]:
        """The history of every option of any release, by name, and by alias where no option has that name."""
        return _histories(self.name, self.family)


@cache
def load_command(version: str, name: str, family: str) -> Command | None:
    """The tool ``name`` in a release; see ``Release.command``. Raises KeyError if ``COMMANDS`` lacks it."""
    table, own = _table(name, family)
    read = _read_lines(table).get(version)
    if read is None:
        return None
    folder = family_folder(version, own or family)
    file = value_at(table.get("file", UNSET), version) if own is None else folder and f"{folder}/{name}"
    file = file.format(family=folder or family) if file is not None else None
    return _command(name, own, version, table, read, file)


@cache
def newest_command(name: str) -> Command | None:
    """The tool ``name`` as images newer than all releases have it; ``None``: nothing is known of them.

    Raises KeyError if ``COMMANDS`` lacks it.
    """
    table, _ = _table(name, "llama")
    if "newer" not in table:
        return None
    read = {"status": "taken from main", **table["newer"]}
    return _command(name, None, NEWER, table, read, value_at(table.get("file", UNSET), NEWER))


def _command(
    name: str,
    family: str | None,
    version: str,
    table: Mapping[str, Any],
    read: Mapping[str, str],
    file: str | None = None,
) -> Command:
    versions = releases_with(name.split(" ")[0], family or "")
    options = {}
    for option, entries in table["options"].items():
        entry = _entry_at(entries, version)
        if entry is None:
            continue
        is_switch, choices = entry["form"] == "switch", value_at(entry.get("choices", ()), version)
        options[option] = Option(
            name=option,
            form=entry["form"],
            choices=("enable", "disable") if is_switch else tuple(map(str, choices or ())),
            default=_default(entry, version),
            changed=_changed_default(entries, versions, version),
            ignored=entry.get("ignored"),
            source=entry.get("source", f"{read['status']}: {read['source']}"),
            aliases=tuple(entry.get("aliases", ())),
            required=entry.get("required", False),
            note=entry.get("note"),
            bare="bare" in entry,
            type=entry.get("type"),
        )
    subcommands = {
        word: _command(f"{name} {word}", family, version, part, read)
        for word, part in table.get("subcommand", {}).items()
        if _entry_at(part, version) is not None
    }
    default = _entry_at(table.get("default_subcommand", []), version)
    return Command(
        name=name,
        family=family,
        release=version,
        options=options,
        status=read["status"],
        source=read["source"],
        file=file,
        subcommands=subcommands,
        default_subcommand=default["word"] if default else None,
    )


def quantized_file(version: str, *families: str) -> str | None:
    """The file that the release's ``quantize.py`` writes for its ``build.py``; ``None`` if it writes none.

    Of the ``families``, which are names of the model's family, the first that is listed counts.
    """
    return (_quantized(families) or {}).get("file") if quantizes(version, *families) else None


def quantizes(version: str, *families: str) -> bool:
    """Whether nothing is known against the release's ``quantize.py`` for the family."""
    entry = _quantized(families)
    return entry is None or parsed(entry["since"]) <= parsed(version)


def _quantized(families: tuple[str, ...]) -> Mapping[str, str] | None:
    written: Mapping[str, Mapping[str, str]] = read_data("quantize")["written"]
    return next((written[family] for family in families if family in written), None)


def commands_of(version: str) -> tuple[Command, ...]:
    """The tools that the release ``version`` has, in the order of use, llama's where each has its own."""
    found = (load_command(version, name, "llama") for name in COMMANDS)
    return tuple(command for command in found if command is not None)


def releases_with(name: str, family: str = "llama") -> tuple[str, ...]:
    """The versions, oldest first, that have the tool ``name``."""
    return tuple(sorted(_read_lines(_table(name, family)[0]), key=parsed))


def families_with(version: str, name: str) -> tuple[str, ...]:
    """Families for which the release has the tool ``name``; empty where the tool is one for all."""
    own = [it.name for it in families().values() if it.folder] if name in BY_FAMILY else []
    return tuple(family for family in own if load_command(version, name, family) is not None)


def _table(name: str, family: str) -> tuple[Mapping[str, Any], str | None]:
    """The data of a tool, empty if there is none, and its family if each family has its own program."""
    if name not in BY_FAMILY:
        return read_data(COMMANDS[name]), None
    known = families().get(family)
    own = None if known is None else known.examples
    file = f"{COMMANDS[name]}/{own}"
    return (read_data(file), own) if DATA.joinpath(f"{file}.toml").is_file() else ({}, None)


def _read_lines(table: Mapping[str, Any]) -> Mapping[str, Mapping[str, str]]:
    """Where each release's list of options was read.

    A release that is newer than all of them has the newest list, unless the program was ``removed``.
    So a new release needs a line only where its list was read.
    """
    lines: Mapping[str, Mapping[str, str]] = table.get("read", {})
    if not lines or "removed" in table:
        return lines
    newest = max(lines, key=parsed)
    later = [version for version in listed_versions() if parsed(version) > parsed(newest)]
    taken = {"status": f"taken from {newest}", "source": lines[newest]["source"]}
    return {**lines, **dict.fromkeys(later, taken)}


_Entries = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""An option in the data, or an entry for each span of releases."""


def _listed(entries: _Entries) -> Sequence[Mapping[str, Any]]:
    return [entries] if isinstance(entries, Mapping) else entries


def _entry_at(entries: _Entries, version: str) -> Mapping[str, Any] | None:
    """The entry that holds for ``version``: from ``since`` on, and before ``until``."""
    for entry in _listed(entries):
        has_ended = "until" in entry and parsed(entry["until"]) <= parsed(version)
        if parsed(entry.get("since", "0")) <= parsed(version) and not has_ended:
            return entry
    return None


def _default(entry: Mapping[str, Any], version: str) -> Any:
    return False if entry["form"] == "flag" else value_at(entry.get("default"), version)


def _changed_default(entries: _Entries, versions: tuple[str, ...], here: str) -> str | None:
    """See ``Option.changed``; ``versions`` are the releases of the program, oldest first."""
    if isinstance(entries, Mapping) and not isinstance(entries.get("default"), Mapping):
        return None
    defaults: dict[str, str] = {}
    steps: list[tuple[str, str]] = []
    for version in versions if here in versions else (*versions, here):
        entry = _entry_at(entries, version)
        if entry is None:
            continue
        # A flag's default is written as a switch has it.
        default = "disable" if entry["form"] == "flag" else _default(entry, version)
        defaults[version] = "unset" if default is None else str(default)
        if not steps or steps[-1][1] != defaults[version]:
            steps.append((version, defaults[version]))
    if len(steps) < 2:
        return None
    parts = [f"{steps[0][1]} before {steps[1][0]}"]
    parts += [f"{default} from {version}" for version, default in steps[1:]]
    return f"Left out, it is {defaults[here]} here: {', '.join(parts)}."


@cache
def _histories(name: str, family: str | None) -> Mapping[str, OptionHistory]:
    """The history of each option of a program, or of one of its sub-commands; see ``Command.histories``."""
    tool, *words = name.split(" ")
    table, _ = _table(tool, family or "")
    known = releases_with(tool, family or "")
    for word in words:
        table = table["subcommand"][word]
    histories: dict[str, OptionHistory] = {}
    for option, entries in table["options"].items():
        listed = _listed(entries)
        having = [version for version in known if _entry_at(entries, version) is not None]
        if having:
            first, last = known.index(having[0]), known.index(having[-1])
            gone = known[last + 1] if last + 1 < len(known) else None
            notes = [entry["note"] for entry in listed if "note" in entry]
            if missing := [version for version in known[first:last] if version not in having]:
                notes.append(f"Not in {', '.join(missing)}.")
            replaced = [entry["replaced_by"] for entry in listed if "replaced_by" in entry]
            history = OptionHistory(
                name=option,
                first=having[0],
                last=having[-1] if gone is not None else None,
                replaced_by=replaced[-1] if replaced else None,
                note=" ".join(notes) or None,
                gone=gone,
            )
        else:
            history = OptionHistory(option, listed[0]["since"], None, None, "No release known here has it.")
        histories[option] = history
        for alias in (alias for entry in listed for alias in entry.get("aliases", ())):
            histories.setdefault(alias, history)
    return histories
