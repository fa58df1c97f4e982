"""Which of upstream's example folders a model belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from trtllm_hpc.tensorrt_llm.releases.load import read_data


@dataclass(frozen=True)
class Family:
    """Models that the same programs convert with the same further words."""

    name: str
    """As people write ``model.family``."""
    architectures: tuple[str, ...]
    """Names in ``config.json``."""
    examples: str
    """The family by which ``Release.command`` knows its programs."""
    convert: tuple[str, ...]
    """Further words for ``convert_checkpoint.py``."""
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
    """The family that was stated, else the one of the model's ``config.json``.

    Args:
        stated: ``model.family``; a name that is not known here is taken as that
            of a folder of examples.
        model_config: the model's ``config.json``, where it could be read.

    Returns:
        ``None`` where neither tells it.
    """
    if stated is not None:
        return families().get(stated) or Family(stated, (), stated, (), False, None, "model.family")
    named = (model_config or {}).get("architectures") or ()
    return next((family for family in families().values() if set(family.architectures) & set(named)), None)
