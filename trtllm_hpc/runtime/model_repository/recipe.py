"""How a model repository is made: a plain value that the plan writes as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

Value = int | float | bool | str


@dataclass(frozen=True)
class ModelEdits:
    """Changes of a parsed ``config.pbtxt`` for which upstream's template has no placeholder.

    Each is made after the placeholders are filled, so that a template with
    numbers instead gives the same result.
    """

    max_batch_size: int | None = None
    decoupled: bool | None = None
    instances: int | None = None
    """``count`` of the instance group."""
    backend: str | None = None
    max_queue_delay_microseconds: int | None = None
    max_queue_size: int | None = None
    preserve_ordering: bool = False
    """Send responses in the order of the requests, whichever instance is the first to be done."""
    models: Mapping[str, str] = field(default_factory=dict)
    """New names of the models in an ensemble's steps, by old name."""


@dataclass(frozen=True)
class ModelRecipe:
    """One model of the repository."""

    name: str
    """Its folder in the repository, and its name in ``config.pbtxt``."""
    template: str
    """Upstream's folder below ``all_models``, e.g. ``inflight_batcher_llm/tensorrt_llm``."""
    values: Mapping[str, Value | None]
    """By placeholder; ``None`` removes the whole parameter, so that the backend's default applies."""
    edits: ModelEdits = ModelEdits()
    asked: tuple[str, ...] = ()
    """Placeholders that the job file sets: it is an error if the template lacks one."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Contents that replace files of the template, by path in the model's folder."""


@dataclass(frozen=True)
class RepositoryRecipe:
    """The whole repository."""

    release: str
    """Version of TensorRT-LLM that the values were chosen for, e.g. ``0.16.0``."""
    models: tuple[ModelRecipe, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the recipe as plain JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> RepositoryRecipe:
        """Return the recipe that ``as_json`` gave. Raises KeyError or TypeError if the record is not one."""
        models = tuple(
            ModelRecipe(**{**model, "edits": ModelEdits(**model["edits"]), "asked": tuple(model["asked"])})
            for model in record["models"]
        )
        return cls(record["release"], models)
