"""Families of models: which of upstream's example folders, and so which programs, a model belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
    convert: tuple[str, ...] = ()
    """Further arguments for ``convert_checkpoint.py``."""
    encoder_decoder: bool = False
    reads: str | None = None
    """What an encoder reads that is not made here, ``audio`` or ``images``; ``None``: text alone."""
    guide: str | None = None
    """Upstream's guide to such a model, in tensorrtllm_backend."""
    context_fmha: bool | None = None
    """``False`` where fused attention over the prompt cannot compute it; else nothing is known against it."""


@cache
def families() -> Mapping[str, Family]:
    """Every family that is known, by name."""
    entries = read_data("families")["family"].items()
    return {name: Family(name, **{"examples": name, **with_tuples(entry)}) for name, entry in entries}


def find_family(stated: str | None, model_config: Mapping[str, Any] | None) -> Family | None:
    """Return the family that is stated, else that of the model's ``config.json``; ``None`` if neither tells.

    An unknown stated name is taken as that of a folder of examples.
    """
    if stated is not None:
        return families().get(stated) or Family(stated, "model.family", examples=stated)
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


@dataclass(frozen=True)
class Preparation:
    """How a family's ``build.py`` gets weights that it cannot take from Hugging Face's."""

    program: str
    """Makes them, in a folder for each number of ranks."""
    option: str
    """Of ``build.py``, for that folder."""
    source: str
    always: bool = False
    """Whether ``build.py`` reads no other weights; else it needs them for int8 scales alone."""
    beside: bool = False
    """Whether ``build.py`` takes the option beside the model's folder, else in its place."""


def preparation(family: str) -> Preparation | None:
    """How the examples of ``family`` prepare weights for ``build.py``; ``None`` if none is known."""
    entry = read_data("prepare")["family"].get(example_family(family))
    return None if entry is None else Preparation(**entry)


def example_families() -> Mapping[str, Mapping[str, Any]]:
    """The folders of examples, by the name of their family."""
    entries: Mapping[str, Mapping[str, Any]] = read_data("examples")["family"]
    return entries


def example_family(family: str) -> str | None:
    """The name under which the examples of ``family`` are filed: its own, or that of a related family."""
    entries = example_families().items()
    return next((name for name, entry in entries if family == name or family in entry.get("also", ())), None)


@cache
def family_folder(version: str, family: str) -> str | None:
    """The family's folder below TensorRT-LLM's ``examples``, ``llama`` or ``models/core/llama``."""
    name = example_family(family)
    return None if name is None else value_at(example_families()[name]["folder"], version)
