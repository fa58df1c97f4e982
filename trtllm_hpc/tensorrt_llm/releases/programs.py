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
    """Name of the family in ``model.family``."""
    source: str
    """Source of the facts."""
    examples: str
    """Name of the family whose programs are used."""
    architectures: tuple[str, ...] = ()
    """Names of the architectures in ``config.json``."""
    folder: Mapping[str, str] = field(default_factory=dict)
    """Folder of the programs below TensorRT-LLM's ``examples``, by first release; see ``value_at``."""


@cache
def families() -> Mapping[str, Family]:
    """Return all known families, by name."""
    entries = read_data("families")["family"].items()
    return {name: Family(name, **{"examples": name, **with_tuples(entry)}) for name, entry in entries}


def find_family(stated: str | None, model_config: Mapping[str, Any] | None) -> Family | None:
    """Return the stated family, else the family of the model's ``config.json``; ``None`` if unknown."""
    if stated is not None:
        return families().get(stated)
    named = (model_config or {}).get("architectures") or ()
    return next((family for family in families().values() if set(family.architectures) & set(named)), None)


def first_release(family: Family, model_config: Mapping[str, Any] | None) -> tuple[str, str] | None:
    """Return a model's architecture and the first release that builds its engine; ``None``: not known.

    If ``config.json`` names no architecture, return the family's name. If the file could not be read, the
    first release with any architecture of the family counts.
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
"""Data file of each of upstream's programs, in the order of use."""
BY_FAMILY = ("build.py", "convert_checkpoint.py")
"""Programs that differ between families of models: their data are folders with a file for each family."""

Form = Literal["flag", "value", "switch", "list"]
"""Forms of an option: ``--x``; ``--x WORD``; ``--x enable|disable``; ``--x WORD [WORD ...]``."""
Value = str | int | float | bool
"""A default in upstream's parser; ``False`` means a flag that is off."""


@dataclass(frozen=True)
class ProgramOption:
    """An option of a program in one release."""

    name: str
    form: Form
    choices: tuple[str, ...]
    """Allowed values; empty: any value."""
    default: Value | None
    """Default value; ``None``: the release has none, or derives it from the model."""
    default_varies: bool
    """Whether other releases have another default."""
    ignored: str | None
    """Why the release accepts the option without effect; ``None``: the option works."""
    aliases: tuple[str, ...] = ()
    """Other spellings of the same option, such as ``-i``."""
    required: bool = False
    note: str | None = None
    type: Literal["int", "float"] | None = None
    """Type of the number that the option takes, if the default does not show it."""


@dataclass(frozen=True)
class Program:
    """One of upstream's programs in one release."""

    name: str
    family: str | None
    """Model family of the list of options; ``None``: one list for all families."""
    release: str
    options: Mapping[str, ProgramOption]
    """Options by name with dashes, e.g. ``--max_batch_size``; ``find`` knows other spellings."""
    status: str
    """``verified``: the list was read at this release; otherwise, the release that it was taken from, and
    why."""
    source: str
    """Source of the list."""
    file: str | None = None
    """Path of the program: below ``examples`` for conversion and build, else below the checkout or
    ``/app``."""
    subcommands: Mapping[str, Program] = field(default_factory=dict)
    """Subcommands by name. Options before the name belong to this program, later ones to the subcommand."""
    default_subcommand: str | None = None
    """Subcommand that may be omitted: its options are also the program's own."""

    def find(self, name: str) -> ProgramOption | None:
        """Return the option with this name or alias."""
        if name in self.options:
            return self.options[name]
        return next((option for option in self.options.values() if name in option.aliases), None)


@cache
def load_program(version: str, name: str, family: str = "llama") -> Program | None:
    """Return the program ``name`` in a release; see ``Release.program``. Raises KeyError if not listed."""
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
    """Return the program ``name`` in images that are newer than all releases; ``None``: not known.

    Raises KeyError if the program is not listed in ``PROGRAM_FILES``.
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
    """Return the programs of a release in the order of use; of programs by family, those of llama."""
    programs = (load_program(version, name) for name in PROGRAM_FILES)
    return tuple(program for program in programs if program is not None)


def releases_with(name: str, family: str = "llama") -> tuple[str, ...]:
    """Return the versions that have the program ``name``, oldest first."""
    return tuple(sorted(_read_lines(_table(name, family)[0]), key=parsed))


def _table(name: str, family: str) -> tuple[Mapping[str, Any], str | None]:
    """Return a program's data (may be empty), and its family if each family has its own program."""
    if name not in BY_FAMILY:
        return read_data(PROGRAM_FILES[name]), None
    known = families().get(family)
    own = None if known is None else known.examples
    file = f"{PROGRAM_FILES[name]}/{own}"
    return (read_data(file), own) if DATA.joinpath(f"{file}.toml").is_file() else ({}, None)


def _read_lines(table: Mapping[str, Any]) -> Mapping[str, Mapping[str, str]]:
    """Return where each release's list of options was read.

    Releases newer than all of these use the newest list, unless the program was ``removed``. So a new release
    needs a line only if its list was read.
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
    """Return the entry that applies to ``version``: from ``since`` on, and before ``until``."""
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
    entry_by_version = ((version, _entry_at(entries, version)) for version in versions)
    # A flag that is off equals a switch with "disable".
    defaults = {
        "disable" if entry["form"] == "flag" else str(_default(entry, version))
        for version, entry in entry_by_version
        if entry is not None
    }
    return len(defaults) > 1
