"""Upstream's programs and their options, release by release, and the families of models that they convert."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
    with_tuples,
)


@dataclass(frozen=True)
class Family:
    """Models that the same programs convert with the same further arguments."""

    name: str
    """As it is written in ``model.family``."""
    source: str
    examples: str
    """The family by which ``Release.command`` knows its programs."""
    architectures: tuple[str, ...] = ()
    """Names in ``config.json``."""
    folder: Mapping[str, str] = field(default_factory=dict)
    """Of its programs below TensorRT-LLM's ``examples``, by the first release with it; see ``value_at``."""


@cache
def families() -> Mapping[str, Family]:
    """Every family that is known, by name."""
    entries = read_data("families")["family"].items()
    return {name: Family(name, **{"examples": name, **with_tuples(entry)}) for name, entry in entries}


def find_family(stated: str | None, model_config: Mapping[str, Any] | None) -> Family | None:
    """Return the family that is stated, else that of the model's ``config.json``; ``None`` if unknown."""
    if stated is not None:
        return families().get(stated)
    named = (model_config or {}).get("architectures") or ()
    return next((family for family in families().values() if set(family.architectures) & set(named)), None)


def first_release(family: Family, model_config: Mapping[str, Any] | None) -> tuple[str, str] | None:
    """Return what a model is, and the first release that builds an engine of it; ``None``: it is not known.

    What the model is: the architecture in its ``config.json``, or the family where nothing names the former.
    Where ``config.json`` could not be read, the first release with an architecture of the family counts.
    """
    named = tuple((model_config or {}).get("architectures") or ())
    known: Mapping[str, Mapping[str, str]] = read_data("architectures")["architecture"]
    first = {name: known[name]["since"] for name in named or family.architectures if name in known}
    if not first:
        return None
    name = min(first, key=lambda architecture: parsed(first[architecture]))
    return name if named or len(family.architectures) == 1 else family.name, first[name]


PROGRAM_FILES: Mapping[str, str] = {
    "hf_gpt_convert.py": "hf_gpt_convert",
    "build.py": "build_py",
    "convert_checkpoint.py": "convert_checkpoint",
    "trtllm-build": "trtllm_build",
    "quantize.py": "quantize",
    "hf_lora_convert.py": "hf_lora_convert",
    "trtllm-serve": "trtllm_serve",
}
"""Upstream's tools and the data file of each, in the order of use."""
BY_FAMILY = ("build.py", "convert_checkpoint.py")
"""Programs that every family of models has its own of: their data are folders, a file for each family."""

Form = Literal["flag", "value", "switch", "list"]
"""How an option is written: ``--x``; ``--x WORD``; ``--x enable|disable``; ``--x WORD [WORD ...]``."""
Value = str | int | float | bool
"""A default as upstream's parser has it; ``False`` is a flag that is off."""


@dataclass(frozen=True)
class ProgramOption:
    """One option of a program, as one release takes it."""

    name: str
    form: Form
    choices: tuple[str, ...]
    """The values it takes; empty: any."""
    default: Value | None
    """``None``: the release has none, or derives it from the model."""
    default_varies: bool
    """Whether other releases have another default."""
    ignored: str | None
    """Why the release takes the option and does nothing with it; ``None`` where it works."""
    aliases: tuple[str, ...] = ()
    """Other spellings of the same option, such as ``-i``."""
    required: bool = False
    note: str | None = None
    type: Literal["int", "float"] | None = None
    """The number that it takes, where its default does not tell."""


@dataclass(frozen=True)
class Program:
    """One of upstream's programs, as one release has it."""

    name: str
    family: str | None
    """The model family that the list is of; ``None`` where there is one list for all."""
    release: str
    options: Mapping[str, ProgramOption]
    """By name with dashes, ``--max_batch_size``; other spellings through ``find``."""
    status: str
    """``verified``: read at this very release; else which neighbour the list was taken from, and why."""
    source: str
    file: str | None = None
    """The program: below ``examples`` for what converts and builds, else below the checkout or ``/app``."""
    subcommands: Mapping[str, Program] = field(default_factory=dict)
    """By name. Options before the name belong to this program, those after it to the sub-command."""
    default_subcommand: str | None = None
    """The sub-command that may be left out: its options are the program's own."""

    def find(self, name: str) -> ProgramOption | None:
        """The option with this name or alias."""
        if name in self.options:
            return self.options[name]
        return next((option for option in self.options.values() if name in option.aliases), None)


@cache
def load_program(version: str, name: str, family: str = "llama") -> Program | None:
    """The tool ``name`` in a release; see ``Release.program``. Raises KeyError if it is not listed above."""
    table, own = _table(name, family)
    read = _read_lines(table).get(version)
    if read is None:
        return None
    known = families().get(own or family)
    # Below TensorRT-LLM's examples: models/core/llama.
    folder = None if known is None else value_at(families()[known.examples].folder, version)
    file = value_at(table.get("file", UNSET), version) if own is None else folder and f"{folder}/{name}"
    file = file.format(family=folder or family) if file is not None else None
    return _program(name, own, version, table, read, file)


@cache
def newest_program(name: str) -> Program | None:
    """The tool ``name`` as images newer than all releases have it; ``None``: nothing is known of them.

    Raises KeyError if it is not listed above.
    """
    table, _ = _table(name, "llama")
    if "newer" not in table:
        return None
    read = {"status": "taken from main", **table["newer"]}
    return _program(name, None, NEWER, table, read, value_at(table.get("file", UNSET), NEWER))


def _program(
    name: str,
    family: str | None,
    version: str,
    table: Mapping[str, Any],
    read: Mapping[str, str],
    file: str | None = None,
) -> Program:
    versions = {version, *releases_with(name.split(" ")[0], family or "")}
    options = {}
    for option, entries in table["options"].items():
        entry = _entry_at(entries, version)
        if entry is None:
            continue
        is_switch, choices = entry["form"] == "switch", value_at(entry.get("choices", ()), version)
        options[option] = ProgramOption(
            name=option,
            form=entry["form"],
            choices=("enable", "disable") if is_switch else tuple(map(str, choices or ())),
            default=_default(entry, version),
            default_varies=_default_varies(entries, versions),
            ignored=entry.get("ignored"),
            aliases=tuple(entry.get("aliases", ())),
            required=entry.get("required", False),
            note=entry.get("note"),
            type=entry.get("type"),
        )
    subcommands = {
        word: _program(f"{name} {word}", family, version, part, read)
        for word, part in table.get("subcommand", {}).items()
        if _entry_at(part, version) is not None
    }
    default = _entry_at(table.get("default_subcommand", []), version)
    return Program(
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


def programs_of(version: str) -> tuple[Program, ...]:
    """The tools that the release ``version`` has, in the order of use, llama's where each has its own."""
    found = (load_program(version, name) for name in PROGRAM_FILES)
    return tuple(program for program in found if program is not None)


def releases_with(name: str, family: str = "llama") -> tuple[str, ...]:
    """The versions, oldest first, that have the tool ``name``."""
    return tuple(sorted(_read_lines(_table(name, family)[0]), key=parsed))


def _table(name: str, family: str) -> tuple[Mapping[str, Any], str | None]:
    """The data of a tool, empty if there is none, and its family if each family has its own program."""
    if name not in BY_FAMILY:
        return read_data(PROGRAM_FILES[name]), None
    known = families().get(family)
    own = None if known is None else known.examples
    file = f"{PROGRAM_FILES[name]}/{own}"
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


def _entry_at(entries: _Entries, version: str) -> Mapping[str, Any] | None:
    """The entry that holds for ``version``: from ``since`` on, and before ``until``."""
    for entry in [entries] if isinstance(entries, Mapping) else entries:
        has_ended = "until" in entry and parsed(entry["until"]) <= parsed(version)
        if parsed(entry.get("since", "0")) <= parsed(version) and not has_ended:
            return entry
    return None


def _default(entry: Mapping[str, Any], version: str) -> Any:
    return False if entry["form"] == "flag" else value_at(entry.get("default"), version)


def _default_varies(entries: _Entries, versions: Collection[str]) -> bool:
    if isinstance(entries, Mapping) and not isinstance(entries.get("default"), Mapping):
        return False
    found = ((version, _entry_at(entries, version)) for version in versions)
    # A flag's default is compared as a switch has it.
    defaults = {
        "disable" if entry["form"] == "flag" else str(_default(entry, version))
        for version, entry in found
        if entry is not None
    }
    return len(defaults) > 1
