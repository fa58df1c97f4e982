"""Requests to models of Triton: from plain values to typed tensors, and these to bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from trtllm_hpc.errors import InvalidRequest
from trtllm_hpc.runtime.records import Endpoint
from trtllm_hpc.wire.served_model import ServedModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

Tensors = Mapping[str, "NDArray[Any]"]
"""By name; texts as ``bytes`` or ``str``."""

TYPES = {
    "BOOL": "?",
    **{f"INT{bits}": f"i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": f"u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"f{bits // 8}" for bits in (16, 32, 64)},
}
"""Triton's types of numbers as NumPy's; ``model_config.proto`` has ``TYPE_`` before each."""
_FITTING: Mapping[str, tuple[type, ...]] = {
    "O": (str,),
    "b": (bool,),
    "i": (int,),
    "u": (int,),
    "f": (int, float),
}
"""Python's types of a value by NumPy's kind. A truth value is a number in Python, but not in a tensor."""


def tensors(model: ServedModel, values: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return the inputs of a request as tensors of the types in the model's configuration.

    Each value is a text, a number, a truth value, a list of these, or an array without the batch's dimension.
    Raises InvalidRequest for a value that its type cannot hold as it is.
    """
    return {name: _tensor(model, name, value) for name, value in values.items()}


def _tensor(model: ServedModel, name: str, value: Any) -> NDArray[Any]:
    kind = np.dtype(TYPES.get(model.inputs.get(name, "").removeprefix("TYPE_"), "O"))
    if isinstance(value, np.ndarray):
        array = value.astype(kind)
    else:
        items = value if isinstance(value, (list, tuple)) else [value]
        for item in items:
            if not _fits(item, kind):
                what = "text" if kind.kind == "O" else kind.name
                raise InvalidRequest(
                    f"{item!r} does not fit into the input {name!r} of model {model.name!r}, which is {what}."
                )
        if kind.kind == "O":
            items = [item.encode("utf-8", errors="replace") for item in items]
        array = np.array(items, dtype=kind)
    return array[None] if model.batched else array


def _fits(item: Any, kind: np.dtype[Any]) -> bool:
    if type(item) not in _FITTING[kind.kind]:
        return False
    if kind.kind in "iu":
        return bool(np.iinfo(kind).min <= item <= np.iinfo(kind).max)
    return kind.kind != "f" or bool(abs(item) <= np.finfo(kind).max)


def infer_request(model: str, arrays: Tensors, request_id: str = "") -> Any:
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
