"""Requests to models of Triton: from plain values to typed tensors, and these to bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from trtllm_hpc.errors import InvalidRequest
from trtllm_hpc.runtime.records import Endpoint
from trtllm_hpc.wire.served_model import ServedModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

Tensors = dict[str, "NDArray[Any]"]

TYPES: Mapping[str, type[Any]] = {
    "BOOL": np.bool_,
    **{
        f"{kind}{bits}": np.dtype(f"{kind.lower()}{bits}").type
        for kind in ("INT", "UINT")
        for bits in (8, 16, 32, 64)
    },
    **{f"FP{bits}": np.dtype(f"float{bits}").type for bits in (16, 32, 64)},
}
"""Triton's types of numbers; ``model_config.proto`` has ``TYPE_`` before each."""


def infer_request(model: str, arrays: Mapping[str, NDArray[Any]], request_id: str = "") -> Any:
    """Return a ``ModelInferRequest`` of Triton's gRPC service."""
    from tritonclient.grpc import service_pb2
    from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for name, array in arrays.items():
        datatype = np_to_triton_dtype(array.dtype)
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        raw = serialize_byte_tensor(array).item() if datatype == "BYTES" else array.tobytes()
        request.raw_input_contents.append(raw)
    return request


def generate_url(endpoint: Endpoint, model: str, *, stream: bool) -> str:
    """Return where Triton's ``generate`` extension asks a model."""
    method = "generate_stream" if stream else "generate"
    return f"{endpoint.scheme}://{endpoint.http}/v2/models/{quote(model, safe='')}/{method}"


def generate_body(values: Mapping[str, Any]) -> bytes:
    """Return the body for Triton's ``generate`` extension, which finds the shapes itself.

    It has no id: Triton (seen at 2.51) takes one for a parameter of the model.
    """
    return json.dumps(values, ensure_ascii=False).encode("utf-8", errors="replace")


def tensors(model: ServedModel, values: Mapping[str, Any], count: int = 1) -> Tensors:
    """Return values, the same for ``count`` prompts, as tensors of the types in the model's configuration.

    Each is a text, number, truth value, list of these, or an array without the batch's dimension. Raises
    InvalidRequest if a value does not fit into its type.
    """
    return {name: _tensor(model, name, value, count) for name, value in values.items()}


def texts_tensor(model: ServedModel, texts: Sequence[str]) -> NDArray[Any]:
    """Return one text for each prompt of a batch as a tensor."""
    array = np.array([text.encode("utf-8", errors="replace") for text in texts], dtype=np.object_)
    return array.reshape(-1, 1) if model.batched else array


def ids_tensors(model: ServedModel, prompts: Sequence[Sequence[int]]) -> Tensors:
    """Return the prompts of a batch as ``input_ids``, shorter ones filled up, and ``input_lengths``.

    Raises InvalidRequest if a prompt is empty, or an id does not fit.
    """
    longest = max(map(len, prompts))
    kind = _type_of(model, "input_ids", np.int32)
    ids = np.zeros((len(prompts), longest), dtype=kind)
    for row, prompt in enumerate(prompts):
        if not len(prompt):
            raise InvalidRequest("A prompt of token ids is empty.")
        _refuse_misfits(model, "input_ids", kind, prompt)
        ids[row, : len(prompt)] = prompt
    lengths = np.array([[len(prompt)] for prompt in prompts], dtype=np.int32)
    return {"input_ids": ids, "input_lengths": lengths}


def _type_of(model: ServedModel, name: str, usual: type[Any]) -> type[Any]:
    return TYPES.get(model.inputs.get(name, "").removeprefix("TYPE_"), usual)


def _tensor(model: ServedModel, name: str, value: Any, count: int) -> NDArray[Any]:
    kind = _type_of(model, name, np.object_)
    if isinstance(value, np.ndarray):
        array = _converted(model, name, kind, value)
    else:
        items = value if isinstance(value, (list, tuple)) else [value]
        _refuse_misfits(model, name, kind, items)
        if kind is np.object_:
            items = [item.encode("utf-8", errors="replace") for item in items]
        array = np.array(items, dtype=kind)
    return np.repeat(array[None], count, axis=0) if model.batched else array


def _converted(model: ServedModel, name: str, kind: type[Any], array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind not in "fiu" or kind is np.object_:
        raise InvalidRequest(
            f"The input {name!r} of model {model.name!r} is {np.dtype(kind).name}, not {array.dtype}."
        )
    with np.errstate(over="ignore", invalid="ignore"):
        converted = array.astype(kind)
    if not np.array_equal(np.isfinite(converted), np.isfinite(array)):
        raise InvalidRequest(f"Numbers for {name!r} do not fit into {np.dtype(kind).name}.")
    return converted


def _refuse_misfits(model: ServedModel, name: str, kind: type[Any], values: Sequence[Any]) -> None:
    """Refuse values that the type cannot hold as they are, instead of cutting them."""
    fitting: tuple[type, ...]
    bound: tuple[float, float] | None
    if kind is np.object_:
        fitting, bound, wanted, what = (str,), None, "text", "text"
    elif kind is np.bool_:
        fitting, bound, wanted, what = (bool,), None, "true or false", "bool"
    elif issubclass(kind, np.integer):
        bound = (int(np.iinfo(kind).min), int(np.iinfo(kind).max))
        fitting, wanted = (int,), f"a whole number from {bound[0]:,} to {bound[1]:,}"
        what = np.dtype(kind).name
    else:
        bound = (float(np.finfo(kind).min), float(np.finfo(kind).max))
        fitting, wanted = (int, float), f"a number of at most {bound[1]:.3g}"
        what = np.dtype(kind).name
    for value in values:
        # A truth value is a number in Python, but not in a tensor.
        if type(value) not in fitting or (bound is not None and not bound[0] <= value <= bound[1]):
            raise InvalidRequest(
                f"{value!r} does not fit into the input {name!r} of model {model.name!r}, which is {what}.",
                hint=f"it takes {wanted}",
            )
