"""What a model repository is made of: a plain value that the plan carries as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

Value = int | float | bool | str


@dataclass(frozen=True)
class ModelEdits:
    """Changes of a parsed ``config.pbtxt`` for which upstream's template has no placeholder.

    Each is made after the placeholders are filled, so that a template with
    numbers in their place comes out the same.
    """

    max_batch_size: int | None = None
    decoupled: bool | None = None
    instances: int | None = None
    """``count`` of the instance group."""
    backend: str | None = None
    max_queue_delay_microseconds: int | None = None
    max_queue_size: int | None = None
    parameters: Mapping[str, str | None] = field(default_factory=dict)
    """Values of ``parameters`` by their own key; ``None`` takes the parameter out."""
    models: Mapping[str, str] = field(default_factory=dict)
    """Models that the steps of an ensemble name: old name to new."""


@dataclass(frozen=True)
class ModelRecipe:
    """One model of the repository."""

    name: str
    """Its folder in the repository, and its name in ``config.pbtxt``."""
    template: str
    """Upstream's folder below ``all_models``, e.g. ``inflight_batcher_llm/tensorrt_llm``."""
    values: Mapping[str, Value | None]
    """By placeholder; ``None`` takes the whole parameter out, so that the backend's default holds."""
    edits: ModelEdits = ModelEdits()
    asked: tuple[str, ...] = ()
    """Placeholders that somebody set by hand, which no template may lack in silence."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts that replace files of the template, by their path in the model's folder."""


@dataclass(frozen=True)
class RepositoryRecipe:
    """The whole repository."""

    release: str
    """Version of TensorRT-LLM that the values were chosen for, e.g. ``0.16.0``."""
    models: tuple[ModelRecipe, ...]

    def as_json(self) -> dict[str, Any]:
        """The recipe as plain JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> RepositoryRecipe:
        """The recipe that ``as_json`` gave.

        Raises:
            KeyError, TypeError: the record is none.
        """
        models = tuple(
            ModelRecipe(**{**model, "edits": ModelEdits(**model["edits"]), "asked": tuple(model["asked"])})
            for model in record["models"]
        )
        return cls(record["release"], models)
