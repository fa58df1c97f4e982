"""The inputs of a request to a text model, from a prompt and options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trtllm_hpc.client.options import BY_NAME, Option, Values
from trtllm_hpc.client.served_model import ServedModel
from trtllm_hpc.errors import RequestFailed

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TYPES: dict[str, type[Any]] = {
    "TYPE_BOOL": np.bool_,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}
"""Types of Triton's configuration (``model_config.proto``)."""

_STREAM_INPUTS = ("stream", "streaming")
_ALWAYS_SENT = ("bad_words", "stop_words")
"""Old releases of upstream's ensemble do not declare these optional."""


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
    if "sampling_param_max_tokens" not in model.inputs:
        found |= dict.fromkeys(_ALWAYS_SENT, "")
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
        found |= {name: True for name in _STREAM_INPUTS if name in model.inputs}
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
    if kind is np.object_:
        items = [item.encode("utf-8", errors="replace") for item in items]
    else:
        for item in items:
            _refuse_misfit(model, name, kind, item)
    array = np.array(items, dtype=kind)
    return array.reshape(1, -1) if model.batched else array


def _refuse_misfit(model: ServedModel, name: str, kind: type[Any], value: float) -> None:
    least: float
    most: float
    if issubclass(kind, np.integer):
        least, most = int(np.iinfo(kind).min), int(np.iinfo(kind).max)
    elif issubclass(kind, np.floating):
        most = float(np.finfo(kind).max)
        least = -most
    else:
        return
    if not least <= value <= most:
        raise RequestFailed(
            f"{value} does not fit into the input {name!r} of model {model.name!r}, which is "
            f"{np.dtype(kind).name}.",
            hint=f"choose a number from {least:,} to {most:,}",
        )
