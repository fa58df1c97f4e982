"""Families of models: which of upstream's example folders, and so which programs, a model belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from trtllm_hpc.tensorrt_llm.releases.data_files import read_data, value_at


@dataclass(frozen=True)
class Family:
    """Models that the same programs convert with the same further arguments."""

    name: str
    """As it is written in ``model.family``."""
    architectures: tuple[str, ...]
    """Names in ``config.json``."""
    examples: str
    """The family by which ``Release.command`` knows its programs."""
    convert: tuple[str, ...]
    """Further arguments for ``convert_checkpoint.py``."""
    encoder_decoder: bool
    context_fmha: bool | None
    """``False`` where fused attention over the prompt cannot compute it; else nothing is known against it."""
    source: str


@cache
def families() -> Mapping[str, Family]:
    """Every family that is known, by name."""
    return {name: _family(name, entry) for name, entry in read_data("families")["family"].items()}


def _family(name: str, entry: Mapping[str, Any]) -> Family:
    return Family(
        name=name,
        architectures=tuple(entry["architectures"]),
        examples=entry.get("examples", name),
        convert=tuple(entry.get("convert", ())),
        encoder_decoder=entry.get("encoder_decoder", False),
        context_fmha=entry.get("context_fmha"),
        source=entry["source"],
    )


def find_family(stated: str | None, model_config: Mapping[str, Any] | None) -> Family | None:
    """Return the family that is stated, else that of the model's ``config.json``; ``None`` if neither tells.

    Args:
        stated: ``model.family``; an unknown name is taken as that of a folder of examples.
        model_config: the model's ``config.json``, where it could be read.
    """
    if stated is not None:
        return families().get(stated) or Family(stated, (), stated, (), False, None, "model.family")
    named = (model_config or {}).get("architectures") or ()
    return next((family for family in families().values() if set(family.architectures) & set(named)), None)


def example_families() -> Mapping[str, Mapping[str, Any]]:
    """The folders of examples, by the name of their family."""
    entries: Mapping[str, Mapping[str, Any]] = read_data("examples")["family"]
    return entries


def example_family(family: str) -> str | None:
    """The name under which the examples of ``family`` are filed: its own, or that of a related family."""
    for name, entry in example_families().items():
        if family == name or family in entry.get("also", ()):
            return name
    return None


@cache
def family_folder(version: str, family: str) -> str | None:
    """The family's folder below TensorRT-LLM's ``examples``, ``llama`` or ``models/core/llama``."""
    name = example_family(family)
    return None if name is None else value_at(example_families()[name]["folder"], version)


def family_name(name: str) -> str | None:
    """The family called ``name``, be it its own name, a related family's, or that of its folder."""
    found = example_family(name)
    if found is not None:
        return found
    for family, entry in example_families().items():
        if any(folder.rpartition("/")[2] == name for folder in entry["folder"].values()):
            return family
    return None
