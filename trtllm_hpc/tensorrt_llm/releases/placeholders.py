"""Placeholders of upstream's model templates, by release: ``data/placeholders.toml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, cast

from trtllm_hpc.tensorrt_llm.releases.data_files import parsed, read_data

Kind = Literal["int", "float", "bool", "enum", "data_type", "text", "int_list", "id_lists"]
Value = int | float | bool | str


@dataclass(frozen=True, kw_only=True)
class Placeholder:
    """One ``${name}`` of a template, as one release has it."""

    name: str
    type: Kind
    """``int_list`` is text such as ``1,2``, ``id_lists`` such as ``0,1;2,3``."""
    choices: tuple[str, ...]
    """What the release takes; empty: anything of the type."""
    place: str | None = None
    """What it fills: ``max_batch_size``, ``decoupled``, ``instances``, ``backend``, ``max_queue_size``,
    ``max_queue_delay_microseconds``, ``parameters.<key>``; ``None``: data types of tensors."""
    required: bool = False
    """The model does not start, or not work, without a value."""
    fallback: Value | None = None
    """What this project fills in where no key sets it."""
    unset: str | None = None
    """How "no value" is written; ``None`` takes the whole parameter out."""
    since: str
    until: str | None
    """The last release that has it; ``None``: the newest still does."""

    def misfit(self, value: Value) -> str | None:
        """What is wrong with a value, to follow its name in a sentence; ``None`` if it fits."""
        if self.choices:
            return None if value in self.choices else f"must be one of {', '.join(self.choices)}"
        wanted, known = _KINDS[self.type]
        if isinstance(known, str):
            fits = re.fullmatch(known, str(value)) is not None
        else:
            fits = isinstance(value, known) and isinstance(value, bool) == (bool in known)
        return None if fits else f"must be {wanted}"


_KINDS: Mapping[Kind, tuple[str, str | tuple[type, ...]]] = {
    "int": ("a whole number", (int,)),
    "float": ("a number", (int, float)),
    "bool": ("true or false", (bool,)),
    "enum": ("one word", (str,)),
    "data_type": ("a data type such as TYPE_FP16", "TYPE_[A-Z0-9]+"),
    "text": ("text", (str,)),
    "int_list": ("whole numbers with commas, such as 1024,2048", r"\d+(,\d+)*"),
    "id_lists": (
        "whole numbers with commas, and semicolons between instances, such as 0,1;2,3",
        r"\d+(,\d+)*(;\d+(,\d+)*)*",
    ),
}
"""What each kind is called, and its types in Python or the pattern of its text."""


@cache
def placeholders_of(version: str, group: str, model: str) -> Mapping[str, Placeholder]:
    """Placeholders of the template ``all_models/<group>/<model>`` in a release, by name; empty if none."""
    entries, known = _entries(group, model), known_placeholders(version, group, model)
    return {name: known[name] for name, entry in entries.items() if _has(entry, version)}


@cache
def known_placeholders(version: str, group: str, model: str) -> Mapping[str, Placeholder]:
    """Placeholders that the template has in any release, as ``version`` would understand them.

    A template may be of a commit between two releases: what is known at all can be filled in it.
    """
    return {name: _placeholder(name, entry, version) for name, entry in _entries(group, model).items()}


def _entries(group: str, model: str) -> Mapping[str, Mapping[str, Any]]:
    return cast("Mapping[str, Mapping[str, Any]]", read_data("placeholders").get(group, {}).get(model, {}))


def _has(entry: Mapping[str, Any], version: str) -> bool:
    # 0.17.0.post1 has what 0.17.0 has, and 0.16.0.dev1 what 0.16.0 has.
    release = parsed(parsed(version).base_version)
    if "again" in entry and release >= parsed(entry["again"]):
        return True
    return parsed(entry["since"]) <= release and ("until" not in entry or release <= parsed(entry["until"]))


def _placeholder(name: str, entry: Mapping[str, Any], version: str) -> Placeholder:
    since, until = entry.get("choices_since", {}), entry.get("choices_until", {})
    release = parsed(parsed(version).base_version)
    choices = tuple(
        choice
        for choice in entry.get("choices", ())
        if (choice not in since or release >= parsed(since[choice]))
        and (choice not in until or release <= parsed(until[choice]))
    )
    same = ("type", "place", "required", "fallback", "unset", "since")
    return Placeholder(
        name=name,
        choices=choices,
        until=None if "again" in entry else entry.get("until"),
        **{key: entry[key] for key in same if key in entry},
    )
