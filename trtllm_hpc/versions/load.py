"""Read the data files of ``versions/data`` into the types of ``versions.model``.

docs/releases.md tells how the files are written. Each is read when first asked for and kept.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from packaging.version import Version

from trtllm_hpc.versions.defaults import changed_sentence, value_at
from trtllm_hpc.versions.model import Command, ContainerPaths, Option, OptionHistory, Release

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


@cache
def read_data(name: str) -> Mapping[str, Any]:
    """The data file ``name`` (without its ending) as plain values."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    text = (files("trtllm_hpc.versions") / "data" / f"{name}.toml").read_text(encoding="utf-8")
    table: dict[str, Any] = toml.loads(text)
    return MappingProxyType(table)


@cache
def releases() -> tuple[Release, ...]:
    """Every release that is known, oldest first."""
    known = [_release(entry) for entry in read_data("releases")["release"]]
    return tuple(sorted(known, key=lambda release: Version(release.version)))


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
    data = read_data(COMMANDS[name])
    table = data if "options" in data else _family_table(data, family)
    if table is None or version not in table["read"]:
        return None
    own_family = family if table is not data else None
    return _command(name, own_family, version, table, table["read"])


def commands_of(version: str, family: str = "llama") -> tuple[Command, ...]:
    """The tools that the release ``version`` has for ``family``, in the order of use."""
    found = (load_command(version, name, family) for name in COMMANDS)
    return tuple(command for command in found if command is not None)


def families(name: str) -> tuple[str, ...]:
    """The families that have a list of their own for the tool ``name``; empty: one list for all."""
    return tuple(read_data(COMMANDS[name]).get("family", ()))


def releases_with(name: str, family: str = "llama") -> tuple[str, ...]:
    """The versions, oldest first, that have the tool ``name``."""
    return tuple(
        release.version for release in releases() if load_command(release.version, name, family) is not None
    )


@cache
def family_folder(version: str, family: str) -> str | None:
    """The family's folder below TensorRT-LLM's ``examples``, ``llama`` or ``models/core/llama``."""
    for file in ("convert_checkpoint", "build_py"):
        table = _family_table(read_data(file), family)
        if table is not None and "folder" in table:
            return str(value_at(table["folder"], Version(version)))
    return None


def _family_table(data: Mapping[str, Any], family: str) -> Mapping[str, Any] | None:
    tables: Mapping[str, Mapping[str, Any]] = data.get("family", {})
    for name, table in tables.items():
        if family == name or family in table.get("also", ()):
            return table
    return None


def _command(
    name: str,
    family: str | None,
    version: str,
    table: Mapping[str, Any],
    read: Mapping[str, Mapping[str, str]],
) -> Command:
    known = sorted(read, key=Version)
    found = read[version]
    source = f"{found['status']}: {found['source']}"
    options = {}
    histories = {}
    for option, entries in table["options"].items():
        spans = entries if isinstance(entries, list) else [entries]
        histories[option] = history = _history(option, spans, known)
        for alias in {alias for span in spans for alias in span.get("aliases", ())}:
            histories.setdefault(alias, history)
        span = _span_at(spans, Version(version))
        if span is not None:
            options[option] = _option(option, span, Version(version), source)
    below = {
        word: _command(f"{name} {word}", family, version, part, read)
        for word, part in table.get("subcommand", {}).items()
        if _span_at([part], Version(version)) is not None
    }
    return Command(
        name=name,
        family=family,
        release=version,
        options=MappingProxyType(options),
        status=found["status"],
        source=found["source"],
        subcommands=MappingProxyType(below),
        histories=MappingProxyType(histories),
    )


def _span_at(spans: list[Mapping[str, Any]], version: Version) -> Mapping[str, Any] | None:
    """The entry that holds for ``version``: from ``since`` on, and before ``until``."""
    for span in spans:
        begun = "since" not in span or Version(span["since"]) <= version
        ended = "until" in span and Version(span["until"]) <= version
        if begun and not ended:
            return span
    return None


def _option(name: str, span: Mapping[str, Any], version: Version, source: str) -> Option:
    default = span.get("default")
    return Option(
        name=name,
        form=span["form"],
        choices=tuple(str(word) for word in value_at(span.get("choices", ()), version) or ()),
        default=value_at(default, version),
        changed=changed_sentence(default, version),
        ignored=span.get("ignored"),
        source=span.get("source", source),
        aliases=tuple(span.get("aliases", ())),
        required=span.get("required", False),
        note=span.get("note"),
    )


def _history(name: str, spans: list[Mapping[str, Any]], known: list[str]) -> OptionHistory:
    """First and last release of an option; a gap between its spans is told in the note."""
    having = [version for version in known if _span_at(spans, Version(version)) is not None]
    gone = next((version for version in known if Version(version) > Version(having[-1])), None)
    gaps = [version for version in known if having[0] != version and version not in having]
    inner = [version for version in gaps if gone is None or Version(version) < Version(gone)]
    notes = [span["note"] for span in spans if "note" in span]
    inner = [version for version in inner if Version(version) > Version(having[0])]
    if inner:
        notes.append(f"Not in {', '.join(inner)}.")
    replaced = [span["replaced_by"] for span in spans if "replaced_by" in span]
    return OptionHistory(
        name=name,
        first=having[0],
        last=having[-1] if gone is not None else None,
        replaced_by=replaced[-1] if replaced else None,
        note=" ".join(notes) or None,
        gone=gone,
    )
