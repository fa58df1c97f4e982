"""Families of models: which of upstream's example folders, and so which programs, a model belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from trtllm_hpc.tensorrt_llm.releases.data_files import parsed, read_data, value_at, with_tuples


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


@cache
def family_folder(version: str, family: str) -> str | None:
    """The folder of a family's programs below TensorRT-LLM's ``examples``: ``models/core/llama``."""
    known = families().get(family)
    return None if known is None else value_at(families()[known.examples].folder, version)
