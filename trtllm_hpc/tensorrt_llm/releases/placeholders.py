"""Placeholders of upstream's model templates by release, from ``data/placeholders.toml``."""

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
    """A ``${name}`` of a template in one release."""

    name: str
    type: Kind
    """Type of the value; ``int_list`` is text such as ``1,2``, ``id_lists`` text such as ``0,1;2,3``."""
    choices: tuple[str, ...]
    """Values that the release takes; empty: any value of the type."""
    place: str | None = None
    """Field that the placeholder fills: ``max_batch_size``, ``decoupled``, ``instances``, ``backend``,
    ``max_queue_size``, ``max_queue_delay_microseconds``, ``parameters.<key>``; ``None``: data types of
    tensors."""
    required: bool = False
    """Whether the model needs a value to start or to work."""
    fallback: Value | None = None
    """Value that this package fills in if no key sets one."""
    unset: str | None = None
    """Text that means "no value"; ``None``: the whole parameter is removed."""
    since: str
    """The first release that has the placeholder."""
    until: str | None
    """The last release that has the placeholder; ``None``: the newest still has it."""

    def misfit(self, value: Value) -> str | None:
        """Return what is wrong with a value, to follow its name in a sentence; ``None`` if it fits."""
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
"""Description of each kind for messages, and its Python types or the pattern of its text."""


@cache
def placeholders_of(version: str, group: str, model: str) -> Mapping[str, Placeholder]:
    """Return the placeholders of the template ``all_models/<group>/<model>`` in a release, by name."""
    entries, known = _entries(group, model), known_placeholders(version, group, model)
    return {name: known[name] for name, entry in entries.items() if _has(entry, version)}


@cache
def known_placeholders(version: str, group: str, model: str) -> Mapping[str, Placeholder]:
    """Return the placeholders that the template has in any release, with the choices of ``version``.

    A template may come from a commit between two releases, so every known placeholder gets a value.
    """
    return {name: _placeholder(name, entry, version) for name, entry in _entries(group, model).items()}


def _entries(group: str, model: str) -> Mapping[str, Mapping[str, Any]]:
    return cast("Mapping[str, Mapping[str, Any]]", read_data("placeholders").get(group, {}).get(model, {}))


def _has(entry: Mapping[str, Any], version: str) -> bool:
    # 0.17.0.post1 has the placeholders of 0.17.0, and 0.16.0.dev1 those of 0.16.0.
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
