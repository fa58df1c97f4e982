"""The inputs of a request to a text model, from a prompt and options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trtllm_hpc.client.options import BY_NAME, Option, Values
from trtllm_hpc.client.served_model import ALWAYS_SENT, LLM_API_LENGTH, STREAM_INPUTS, ServedModel
from trtllm_hpc.errors import RequestFailed

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TYPES: dict[str, type[Any]] = {
    "TYPE_BOOL": np.bool_,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}
"""Types of Triton's configuration (``model_config.proto``)."""


def request_inputs(
    model: ServedModel, prompt: str, options: Values, *, stream: bool = False, wants: Sequence[str] = ()
) -> dict[str, Any]:
    """Return what a request sends, by input: a ``str``, ``bool`` or number, or a list of them.

    Args:
        stream: whether to ask for responses as the tokens are generated.
        wants: outputs that come only if asked for: ``context_logits``, ``generation_logits``.

    Raises:
        RequestFailed: the model takes no text, or lacks the input of an option or output.
    """
    if "text_input" not in model.inputs:
        raise RequestFailed(
            f"Model {model.name!r} takes token ids, not text.", hint="choose another one: --model ensemble"
        )
    found: dict[str, Any] = {"text_input": prompt}
    if LLM_API_LENGTH not in model.inputs:
        found |= dict.fromkeys(ALWAYS_SENT, "")
    for name, value in options.items():
        found[_input_of(model, BY_NAME[name])] = value
    for output in wants:
        if f"return_{output}" not in model.inputs:
            raise RequestFailed(
                f"Model {model.name!r} cannot be asked for {output}.",
                hint="choose another model with --model",
            )
        found[f"return_{output}"] = True
    if stream:
        found |= {name: True for name in STREAM_INPUTS if name in model.inputs}
    return found


def arrays(model: ServedModel, inputs: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """Return the inputs as tensors of the types that the model's configuration gives, a batch of one.

    Raises:
        RequestFailed: a number does not fit into its type.
    """
    return {name: _array(model, name, value) for name, value in inputs.items()}


def check_numbers(model: ServedModel, inputs: dict[str, Any]) -> None:
    """Refuse numbers that do not fit: over HTTP, Triton would take what is left of their bits.

    Raises:
        RequestFailed: see above.
    """
    arrays(model, inputs)


def _input_of(model: ServedModel, option: Option) -> str:
    for name in option.inputs:
        if name in model.inputs:
            return name
    raise RequestFailed(
        f"Model {model.name!r} has no input for {option.flag} ({option.text}).",
        hint="leave it out, or choose another model with --model",
    )


def _array(model: ServedModel, name: str, value: Any) -> NDArray[Any]:
    kind = _TYPES.get(model.inputs.get(name, ""), np.object_)
    items = value if isinstance(value, list) else [value]
    for item in items:
        _refuse_misfit(model, name, kind, item)
    if kind is np.object_:
        items = [item.encode("utf-8", errors="replace") for item in items]
    array = np.array(items, dtype=kind)
    return array.reshape(1, -1) if model.batched else array


def _refuse_misfit(model: ServedModel, name: str, kind: type[Any], value: Any) -> None:
    """Refuse a value that the type cannot hold as it is, instead of cutting it."""
    if kind is np.object_:
        fits, wanted, what = isinstance(value, str), "text", "text"
    elif kind is np.bool_:
        fits, wanted, what = isinstance(value, bool), "true or false", "bool"
    elif issubclass(kind, np.integer):
        least, most = int(np.iinfo(kind).min), int(np.iinfo(kind).max)
        fits = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        wanted, what = f"a whole number from {least:,} to {most:,}", np.dtype(kind).name
    else:
        bound = float(np.finfo(kind).max)
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= bound
        wanted, what = f"a number of at most {bound:.3g}", np.dtype(kind).name
    if not fits:
        raise RequestFailed(
            f"{value!r} does not fit into the input {name!r} of model {model.name!r}, which is {what}.",
            hint=f"it takes {wanted}",
        )
