"""Facts about GPUs: memory and compute capability by name (``data/gpus.toml``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from trtllm_hpc.versions.load import read_data


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
            for name, facts in read_data("gpus")["gpu"].items()
        }
    )
