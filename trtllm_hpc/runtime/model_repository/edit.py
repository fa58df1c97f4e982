"""Changes of a parsed ``ModelConfig``: what upstream asks people to do with ``sed``."""

from __future__ import annotations

from typing import Any

from trtllm_hpc.runtime.model_repository.recipe import ModelEdits, ModelRecipe
from trtllm_hpc.runtime.model_repository.schema import schema


def edit(message: Any, recipe: ModelRecipe) -> None:
    """Make the recipe's changes, and give the model its name."""
    message.name = recipe.name
    edits = recipe.edits
    if edits.backend is not None:
        message.backend = edits.backend
    _edit_batching(message, edits)
    if edits.decoupled is not None and message.model_transaction_policy.decoupled != edits.decoupled:
        message.model_transaction_policy.decoupled = edits.decoupled
    if edits.instances is not None:
        _edit_instances(message, edits.instances)
    for key, value in edits.parameters.items():
        if value is None:
            message.parameters.pop(key, None)
        else:
            message.parameters[key].string_value = value
    for step in message.ensemble_scheduling.step:
        step.model_name = edits.models.get(step.model_name, step.model_name)


def _edit_batching(message: Any, edits: ModelEdits) -> None:
    if edits.max_batch_size is not None:
        before, message.max_batch_size = message.max_batch_size, edits.max_batch_size
        preferred = message.dynamic_batching.preferred_batch_size
        # Triton refuses a preferred size above the largest; one that was the largest is meant to stay it.
        sizes = {
            edits.max_batch_size if size == before else min(size, edits.max_batch_size) for size in preferred
        }
        if preferred:
            preferred[:] = sorted(sizes)
    if edits.max_queue_delay_microseconds is not None:
        message.dynamic_batching.max_queue_delay_microseconds = edits.max_queue_delay_microseconds
    if edits.max_queue_size is not None:
        message.dynamic_batching.default_queue_policy.max_queue_size = edits.max_queue_size


def _edit_instances(message: Any, count: int) -> None:
    if not message.instance_group:
        # As upstream's templates have it: the backend chooses the GPUs by itself.
        message.instance_group.add(kind=schema().ModelInstanceGroup.KIND_CPU)
    for group in message.instance_group:
        group.count = count
