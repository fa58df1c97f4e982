"""Read the data files of ``versions/data`` into the types of ``versions.model``.

docs/releases.md tells how the files are written. Each is read when first asked for and kept.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from trtllm_hpc.tensorrt_llm.releases.defaults import UNSET, changed_sentence, parsed, value_at
from trtllm_hpc.tensorrt_llm.releases.model import Command, ContainerPaths, Option, OptionHistory, Release

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "hf_gpt_convert.py": "hf_gpt_convert",
        "build.py": "build_py",
        "convert_checkpoint.py": "convert_checkpoint",
        "trtllm-build": "trtllm_build",
        "quantize.py": "quantize",
        "hf_lora_convert.py": "hf_lora_convert",
        "launch_triton_server.py": "launch_triton_server",
        "benchmark_core_model.py": "benchmark_core_model",
        "end_to_end_test.py": "end_to_end_test",
        "inflight_batcher_llm_client.py": "inflight_batcher_llm_client",
        "end_to_end_grpc_client.py": "end_to_end_grpc_client",
    }
)
"""Upstream's tools and the data file of each, in the order of use."""
BY_FAMILY = ("build.py", "convert_checkpoint.py")
"""Tools of which every family of models has its own: their data are folders, with a file for each family."""

_DATA = files("trtllm_hpc.tensorrt_llm.releases") / "data"


@cache
def read_data(name: str) -> Mapping[str, Any]:
    """The data file ``name`` (without its ending, with ``/`` for a folder) as plain values."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    file = _DATA.joinpath(f"{name}.toml")
    table: dict[str, Any] = toml.loads(file.read_text(encoding="utf-8"))
    return MappingProxyType(table)


@cache
def releases() -> tuple[Release, ...]:
    """Every release that is known, oldest first."""
    known = [_release(entry) for entry in read_data("releases")["release"]]
    return tuple(sorted(known, key=lambda release: parsed(release.version)))


def _release(entry: Mapping[str, Any]) -> Release:
    return Release(
        version=entry["version"],
        tags=tuple(entry["tags"]),
        tensorrt=entry.get("tensorrt"),
        python=entry.get("python"),
        cuda=entry.get("cuda"),
        paths=ContainerPaths(
            examples=entry.get("examples"),
            all_models=entry.get("all_models"),
            scripts=entry.get("scripts"),
            client=entry.get("client"),
            tools=entry.get("tools"),
            tritonserver=entry.get("tritonserver", "/opt/tritonserver/bin/tritonserver"),
        ),
        backends=tuple(entry["backends"]),
        source=entry["source"],
        note=entry.get("note"),
    )


@cache
def load_command(version: str, name: str, family: str) -> Command | None:
    """The tool ``name`` in the release ``version``; see ``Release.command``.

    Raises:
        KeyError: ``name`` is none of ``COMMANDS``.
    """
    table, own_family = _table(name, family)
    if table is None or version not in table["read"]:
        return None
    return _command(name, own_family, version, table, table["read"])


def commands_of(version: str, family: str = "llama") -> tuple[Command, ...]:
    """The tools that the release ``version`` has for ``family``, in the order of use."""
    found = (load_command(version, name, family) for name in COMMANDS)
    return tuple(command for command in found if command is not None)


def releases_with(name: str, family: str = "llama") -> tuple[str, ...]:
    """The versions, oldest first, that have the tool ``name``."""
    return tuple(
        release.version for release in releases() if load_command(release.version, name, family) is not None
    )


@cache
def family_folder(version: str, family: str) -> str | None:
    """The family's folder below TensorRT-LLM's ``examples``, ``llama`` or ``models/core/llama``."""
    entry = _family(family)
    return None if entry is None else value_at(entry[1]["folder"], version)


def _table(name: str, family: str) -> tuple[Mapping[str, Any] | None, str | None]:
    """The data of a tool, and the family it is of where each family has a program of its own."""
    if name not in BY_FAMILY:
        return read_data(COMMANDS[name]), None
    entry = _family(family)
    file = f"{COMMANDS[name]}/{entry[0]}" if entry is not None else ""
    if entry is None or not _DATA.joinpath(f"{file}.toml").is_file():
        return None, None
    return read_data(file), entry[0]


def family_name(name: str) -> str | None:
    """The family that goes by ``name``: its own, that of a model it serves, or that of its folder."""
    entry = _family(name)
    if entry is not None:
        return entry[0]
    for family, table in read_data("examples")["family"].items():
        if any(folder.rpartition("/")[2] == name for folder in table["folder"].values()):
            return str(family)
    return None


def families_with(version: str, name: str) -> tuple[str, ...]:
    """Families for which the release has the tool ``name``; empty where the tool is one for all."""
    if name not in BY_FAMILY:
        return ()
    known = read_data("examples")["family"]
    return tuple(family for family in known if load_command(version, name, family) is not None)


def _family(family: str) -> tuple[str, Mapping[str, Any]] | None:
    """Name and entry of the folder of examples that serves ``family``."""
    for name, entry in read_data("examples")["family"].items():
        if family == name or family in entry.get("also", ()):
            return name, entry
    return None


def _command(
    name: str,
    family: str | None,
    version: str,
    table: Mapping[str, Any],
    read: Mapping[str, Mapping[str, str]],
) -> Command:
    found = read[version]
    source = f"{found['status']}: {found['source']}"
    options = {}
    past = _past(name, family)
    for option, entries in table["options"].items():
        span = _span_at(_spans(entries), version)
        if span is not None:
            changed = changed_sentence(past.defaults[option], version)
            options[option] = _option(option, span, version, source, changed)
    below = {
        word: _command(f"{name} {word}", family, version, part, read)
        for word, part in table.get("subcommand", {}).items()
        if _span_at([part], version) is not None
    }
    return Command(
        name=name,
        family=family,
        release=version,
        options=MappingProxyType(options),
        status=found["status"],
        source=found["source"],
        file=_file(name, family, version, table),
        subcommands=MappingProxyType(below),
        histories=past.histories,
    )


@dataclass(frozen=True)
class _Past:
    """What is the same in every release's view of one tool, or of one of its subcommands."""

    histories: Mapping[str, OptionHistory]
    """By name, and by alias where no option has that name."""
    defaults: Mapping[str, Mapping[str, Any]]
    """By option, and then by release."""


@cache
def _past(name: str, family: str | None) -> _Past:
    tool, *words = name.split(" ")
    table, _ = _table(tool, family or "")
    assert table is not None
    known = sorted(table["read"], key=parsed)
    for word in words:
        table = table["subcommand"][word]
    histories: dict[str, OptionHistory] = {}
    defaults = {}
    for option, entries in table["options"].items():
        spans = _spans(entries)
        histories[option] = history = _history(option, spans, known)
        for alias in {alias for span in spans for alias in span.get("aliases", ())}:
            histories.setdefault(alias, history)
        defaults[option] = _defaults(spans, known)
    return _Past(MappingProxyType(histories), MappingProxyType(defaults))


def _spans(entries: Mapping[str, Any] | list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The entries of an option, of which the data may have one alone."""
    return entries if isinstance(entries, list) else [entries]


def _file(name: str, family: str | None, version: str, table: Mapping[str, Any]) -> str | None:
    if family is not None:
        folder = family_folder(version, family)
        return None if folder is None else f"{folder}/{name}"
    found = value_at(table.get("file", UNSET), version)
    return None if found is None else str(found)


def _span_at(spans: list[Mapping[str, Any]], version: str) -> Mapping[str, Any] | None:
    """The entry that holds for ``version``: from ``since`` on, and before ``until``."""
    at = parsed(version)
    for span in spans:
        begun = "since" not in span or parsed(span["since"]) <= at
        ended = "until" in span and parsed(span["until"]) <= at
        if begun and not ended:
            return span
    return None


def _option(name: str, span: Mapping[str, Any], version: str, source: str, changed: str | None) -> Option:
    return Option(
        name=name,
        form=span["form"],
        choices=_choices(span, version),
        default=_default(span, version),
        changed=changed,
        ignored=span.get("ignored"),
        source=span.get("source", source),
        aliases=tuple(span.get("aliases", ())),
        required=span.get("required", False),
        note=span.get("note"),
        bare="bare" in span,
    )


def _default(span: Mapping[str, Any], version: str) -> Any:
    return False if span["form"] == "flag" else value_at(span.get("default"), version)


def _defaults(spans: list[Mapping[str, Any]], known: list[str]) -> dict[str, Any]:
    """The default in each release that has the option; a flag's is ``disable``, as a switch has it."""
    found = {}
    for version in known:
        span = _span_at(spans, version)
        if span is not None:
            found[version] = "disable" if span["form"] == "flag" else _default(span, version)
    return found


def _choices(span: Mapping[str, Any], version: str) -> tuple[str, ...]:
    if span["form"] == "switch":
        return ("enable", "disable")
    return tuple(str(word) for word in value_at(span.get("choices", ()), version) or ())


def _history(name: str, spans: list[Mapping[str, Any]], known: list[str]) -> OptionHistory:
    """First and last release of an option; releases between that lack it are told in the note."""
    having = [version for version in known if _span_at(spans, version) is not None]
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
