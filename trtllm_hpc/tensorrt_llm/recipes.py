"""Recipes of TensorRT-LLM's repository, for a model, a kind of GPU and a goal.

``tools/import_recipes.py`` writes ``recipes.toml`` from upstream's files; ``models.toml`` has models' sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from trtllm_hpc.tensorrt_llm.checkpoint import Checkpoint
from trtllm_hpc.tensorrt_llm.releases.data_files import read_data, with_tuples

Goal = Literal["latency", "throughput"]


@dataclass(frozen=True, eq=False)
class Recipe:
    """Settings for a model on a kind of GPU."""

    source: str
    """File of NVIDIA/TensorRT-LLM; without ``commit`` a shipped job file, which names its own sources."""
    models: tuple[str, ...]
    gpus: tuple[str, ...]
    """Kinds of GPU, such as ``h200``; none: any."""
    count: int
    goal: Goal | Literal["disaggregated serving"]
    commit: str | None = None
    llm_api: Mapping[str, Any] = field(default_factory=dict)
    load: str | None = None
    """What upstream has measured the settings with: requests at once and their tokens."""
    input_tokens: int | None = None
    after: str | None = None
    """The last release that does not have the model."""

    def distance(self, checkpoint: Checkpoint) -> int | None:
        """Return 0 for the same model, 1 for another precision of a dense one, more for another size.

        ``None``: another architecture, or experts in another precision, which need other kernels.
        """
        found = (_distance(name, checkpoint) for name in self.models)
        return min((it for it in found if it is not None), default=None)


def _distance(name: str, checkpoint: Checkpoint) -> int | None:
    if checkpoint.name.casefold() == name.rpartition("/")[2].casefold():
        return 0
    model, config = read_data("models")["model"].get(name, {}), checkpoint.config
    if model.get("architecture") != checkpoint.architecture:
        return None
    size = config.get("hidden_size", 0) * config.get("num_hidden_layers", 0)
    is_alike, experts = model["quantization"] == checkpoint.quantization, checkpoint.experts
    if not is_alike and (experts or model["experts"]):
        return None
    apart = abs(model["hidden"] * model["layers"] - size) + abs(model["experts"] - experts)
    return int(apart + (not is_alike))


@cache
def recipes() -> tuple[Recipe, ...]:
    """Return upstream's."""
    return tuple(Recipe(**with_tuples(entry)) for entry in read_data("recipes")["recipe"])
