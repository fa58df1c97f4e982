"""Facts about GPUs: memory and compute capability by name (``gpus.toml`` beside this file)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU."""

    name: str
    memory_gib: float
    """As nvidia-smi shows it."""
    compute_capability: str
    source: str


@cache
def gpus() -> Mapping[str, Gpu]:
    """Every kind that is known, by name."""
    return MappingProxyType(
        {
            name: Gpu(
                name, round(facts["memory_mib"] / 1024, 2), facts["compute_capability"], facts["source"]
            )
            for name, facts in _read()["gpu"].items()
        }
    )


def _read() -> dict[str, Any]:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    table: dict[str, Any] = toml.loads(
        (resources.files("trtllm_hpc.config") / "gpus.toml").read_text("utf-8")
    )
    return table
