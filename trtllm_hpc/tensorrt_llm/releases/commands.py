"""Upstream's programs and their options, release by release."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal, cast

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
    table, own_family = _table(name, family)
    read = _read_lines(table)
    if version not in read:
        return None
    command = _command(name, own_family, version, table, read[version])
    if command.file is None or "{family}" not in command.file:
        return command
    return replace(command, file=command.file.format(family=family_folder(version, family) or family))


@cache
def newest_command(name: str) -> Command | None:
    """The tool ``name`` as images newer than all releases have it; ``None``: nothing is known of them.

    Raises KeyError if ``COMMANDS`` lacks it.
    """
    table, _ = _table(name, "llama")
    if "newer" not in table:
        return None
    return _command(name, None, NEWER, table, {"status": "taken from main", **table["newer"]})


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


def _command(
    name: str, family: str | None, version: str, table: Mapping[str, Any], read: Mapping[str, str]
) -> Command:
    versions = releases_with(name.split(" ")[0], family or "")
    options = {}
    for option, spans in _spans(table):
        span = _span_at(spans, version)
        if span is not None:
            changed = _changed_default(spans, versions, version)
            source = f"{read['status']}: {read['source']}"
            options[option] = _option(option, span, version, source, changed)
    subcommands = {
        word: _command(f"{name} {word}", family, version, part, read)
        for word, part in table.get("subcommand", {}).items()
        if _span_at([part], version) is not None
    }
    default = table.get("default_subcommand")
    return Command(
        name=name,
        family=family,
        release=version,
        options=options,
        status=read["status"],
        source=read["source"],
        file=_file(name, family, version, table),
        subcommands=subcommands,
        default_subcommand=default["word"] if default and _span_at([default], version) else None,
    )


def _spans(table: Mapping[str, Any]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Each option with its entries; the data may have a single entry."""
    for option, entries in table["options"].items():
        yield option, entries if isinstance(entries, list) else [entries]


def _file(name: str, family: str | None, version: str, table: Mapping[str, Any]) -> str | None:
    if family is None:
        return cast("str | None", value_at(table.get("file", UNSET), version))
    folder = family_folder(version, family)
    return None if folder is None else f"{folder}/{name}"


def _span_at(spans: list[Mapping[str, Any]], version: str) -> Mapping[str, Any] | None:
    """The entry that holds for ``version``: from ``since`` on, and before ``until``."""
    for span in spans:
        begun = parsed(span.get("since", "0")) <= parsed(version)
        if begun and ("until" not in span or parsed(version) < parsed(span["until"])):
            return span
    return None


def _option(name: str, span: Mapping[str, Any], version: str, source: str, changed: str | None) -> Option:
    choices = value_at(span.get("choices", ()), version)
    return Option(
        name=name,
        form=span["form"],
        choices=("enable", "disable") if span["form"] == "switch" else tuple(map(str, choices or ())),
        default=_default(span, version),
        changed=changed,
        ignored=span.get("ignored"),
        source=span.get("source", source),
        aliases=tuple(span.get("aliases", ())),
        required=span.get("required", False),
        note=span.get("note"),
        bare="bare" in span,
        type=span.get("type"),
    )


def _default(span: Mapping[str, Any], version: str) -> Any:
    return False if span["form"] == "flag" else value_at(span.get("default"), version)


def _changed_default(spans: list[Mapping[str, Any]], versions: tuple[str, ...], here: str) -> str | None:
    """See ``Option.changed``; ``versions`` are the releases of the program, oldest first."""
    if len(spans) == 1 and not isinstance(spans[0].get("default"), Mapping):
        return None
    defaults: dict[str, str] = {}
    steps: list[tuple[str, str]] = []
    for version in versions if here in versions else (*versions, here):
        span = _span_at(spans, version)
        if span is None:
            continue
        # A flag's default is written as a switch has it.
        default = "disable" if span["form"] == "flag" else _default(span, version)
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
    versions = releases_with(tool, family or "")
    for word in words:
        table = table["subcommand"][word]
    histories: dict[str, OptionHistory] = {}
    for option, spans in _spans(table):
        histories[option] = history = _history(option, spans, versions)
        for alias in {alias for span in spans for alias in span.get("aliases", ())}:
            histories.setdefault(alias, history)
    return histories


def _history(name: str, spans: list[Mapping[str, Any]], known: tuple[str, ...]) -> OptionHistory:
    """First and last release of an option; its note names releases between that lack it."""
    having = [version for version in known if _span_at(spans, version) is not None]
    if not having:
        return OptionHistory(name, spans[0]["since"], None, None, "No release known here has it.")
    first, last = known.index(having[0]), known.index(having[-1])
    gone = known[last + 1] if last + 1 < len(known) else None
    notes = [span["note"] for span in spans if "note" in span]
    missing = [version for version in known[first:last] if version not in having]
    if missing:
        notes.append(f"Not in {', '.join(missing)}.")
    replaced = [span["replaced_by"] for span in spans if "replaced_by" in span]
    return OptionHistory(
        name=name,
        first=having[0],
        last=having[-1] if gone is not None else None,
        replaced_by=replaced[-1] if replaced else None,
        note=" ".join(notes) or None,
        gone=gone,
    )
