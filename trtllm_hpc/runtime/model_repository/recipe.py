"""The recipe of a model repository: a plain value that the plan writes as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

Value = int | float | bool | str


@dataclass(frozen=True)
class ModelEdits:
    """Changes to a parsed ``config.pbtxt`` for which upstream's template has no placeholder.

    They are applied after the placeholders are filled, so a template with a number in place of a placeholder
    gives the same result.
    """

    max_batch_size: int | None = None
    decoupled: bool | None = None
    instances: int | None = None
    """``count`` of the instance group."""
    backend: str | None = None
    max_queue_delay_microseconds: int | None = None
    max_queue_size: int | None = None
    preserve_ordering: bool = False
    """Send responses in the order of the requests, whichever instance finishes first."""
    models: Mapping[str, str] = field(default_factory=dict)
    """New names of the models in an ensemble's steps, by old name."""


@dataclass(frozen=True)
class ModelRecipe:
    """One model of the repository."""

    name: str
    """The model's name, and its folder in the repository."""
    template: str
    """Upstream's folder below ``all_models``, e.g. ``inflight_batcher_llm/tensorrt_llm``."""
    values: Mapping[str, Value | None]
    """Value of each placeholder; ``None`` removes the whole parameter, so that the backend's default
    applies."""
    edits: ModelEdits = ModelEdits()
    asked: tuple[str, ...] = ()
    """Placeholders that the job file sets: a template that lacks one of them is an error."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Contents that replace files of the template, by path in the model's folder."""


@dataclass(frozen=True)
class RepositoryRecipe:
    """The whole repository."""

    release: str
    """Release of TensorRT-LLM for which the values were chosen, e.g. ``0.16.0``."""
    models: tuple[ModelRecipe, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the recipe as plain JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> RepositoryRecipe:
        """Return the recipe from what ``as_json`` returned; raise KeyError or TypeError for anything else."""
        models = tuple(
            ModelRecipe(**{**model, "edits": ModelEdits(**model["edits"]), "asked": tuple(model["asked"])})
            for model in record["models"]
        )
        return cls(record["release"], models)
