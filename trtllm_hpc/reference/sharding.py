"""The slice of each parameter that a rank has, by the tensor-parallel plan in transformers.

The styles and the dimensions that they split are those of ``transformers.distributed.tensor_parallel``
(5.17); a model whose plan needs another style is refused when its engine is built.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trtllm_hpc.errors import BuildFailed

Shape = tuple[int, ...]

_BY_OUTPUTS = frozenset({"colwise", "colwise_gather_output"})
"""Each rank computes some of a layer's outputs."""

_BY_INPUTS = frozenset({"rowwise", "rowwise_split_input"})
"""Each rank multiplies some of a layer's inputs; the ranks' results are summed."""

_WHOLE = frozenset({"embedding_rowwise", "replicated_with_grad_allreduce"})
"""Every rank has all of it: split embeddings would need one more sum over the ranks in each step."""


def style_of(module: str, plan: dict[str, str]) -> str | None:
    """The plan's style for a module; ``None`` if every rank has and computes all of it."""
    return plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", module))


def is_cut(module: str, plan: dict[str, str]) -> bool:
    """Whether each rank computes only a part of a module."""
    return style_of(module, plan) in _BY_OUTPUTS | _BY_INPUTS


def cut_dimension(name: str, shape: Shape, plan: dict[str, str], ranks: int) -> int | None:
    """The dimension along which a parameter is split; ``None`` if every rank has all of it."""
    if ranks == 1:
        return None
    module, _, leaf = name.rpartition(".")
    style = style_of(module, plan)
    if style in _BY_OUTPUTS:
        return max(len(shape) - 2, 0)
    if style in _BY_INPUTS and leaf != "bias":
        return len(shape) - 1
    return None


def slice_of(name: str, parameter: Any, plan: dict[str, str], rank: int, ranks: int) -> Any:
    """A rank's part of a parameter, contiguous; a copy unless it is the whole parameter."""
    dimension = cut_dimension(name, tuple(parameter.shape), plan, ranks)
    if dimension is None:
        return parameter.contiguous()
    part = parameter.chunk(ranks, dimension)[rank]
    return part.new_empty(part.shape).copy_(part)


def slice_shape(name: str, shape: Shape, plan: dict[str, str], ranks: int) -> Shape:
    """The shape of each rank's part."""
    dimension = cut_dimension(name, shape, plan, ranks)
    return tuple(size // ranks if index == dimension else size for index, size in enumerate(shape))


def stored_names(model: Any, ranks: int) -> Iterator[str]:
    """The parameters that a rank's file contains.

    A tied parameter is left out, unless it is split in another way than the one that it is tied to.
    """
    plan = model.tp_plan
    for name, parameter in model.named_parameters(remove_duplicate=False):
        source, shape = model.all_tied_weights_keys.get(name), tuple(parameter.shape)
        if not source or cut_dimension(name, shape, plan, ranks) != cut_dimension(source, shape, plan, ranks):
            yield name


def check(model: Any, ranks: int) -> None:
    """Refuse a model that cannot be split over the ranks.

    Raises BuildFailed if there is no plan, it has an unknown style, or a size is not a multiple of the number
    of ranks.
    """
    if ranks == 1:
        return
    kind, plan = model.config.model_type, model.tp_plan
    if not model.config.base_model_tp_plan:
        raise BuildFailed(f"transformers has no tensor-parallel plan for models of type {kind}.")
    for layer, style in plan.items():
        if style not in _BY_OUTPUTS | _BY_INPUTS | _WHOLE:
            raise BuildFailed(
                f"transformers' tensor-parallel plan for models of type {kind} cuts {layer} in the style "
                f"{style}, which the reference backend does not know.",
                hint="build with --tensor-parallel 1",
            )
    for name, parameter in model.named_parameters(remove_duplicate=False):
        dimension = cut_dimension(name, tuple(parameter.shape), plan, ranks)
        if dimension is not None and parameter.shape[dimension] % ranks:
            raise BuildFailed(
                f"{name} has {parameter.shape[dimension]} rows or columns, "
                f"which cannot be split over --tensor-parallel {ranks} ranks."
            )
