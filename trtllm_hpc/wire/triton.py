"""Triton's protocols: encode values as typed tensors and bytes, and parse messages and JSON."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from trtllm_hpc.errors import InvalidRequest
from trtllm_hpc.runtime.records import Endpoint
from trtllm_hpc.wire.events import last_events
from trtllm_hpc.wire.response import Part, Response, WrongResponse, error_message
from trtllm_hpc.wire.served_model import (
    IDS_OUTPUT,
    LENGTH_OUTPUT,
    LOG_PROBS_OUTPUT,
    LOGITS_OUTPUTS,
    TEXT_OUTPUT,
    ServedModel,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

Tensors = Mapping[str, "NDArray[Any]"]
"""Tensors by name; texts are ``bytes`` or ``str``."""

TYPES = {
    "BOOL": "?",
    **{f"INT{bits}": f"i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": f"u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"f{bits // 8}" for bits in (16, 32, 64)},
}
"""NumPy types by Triton's types of numbers; ``model_config.proto`` prefixes each with ``TYPE_``."""
_FITTING: Mapping[str, tuple[type, ...]] = {
    "O": (str,),
    "b": (bool,),
    "i": (int,),
    "u": (int,),
    "f": (int, float),
}
"""Python types by NumPy's kind. A boolean is a number in Python, but not in a tensor."""


def tensors(model: ServedModel, values: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return the inputs of a request as tensors of the types in the model's configuration.

    Each value is a text, a number, a boolean, a list of these, or an array without the batch dimension.
    Raises InvalidRequest for a value that the type cannot represent.
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
                type_name = "text" if kind.kind == "O" else kind.name
                raise InvalidRequest(
                    f"{item!r} does not fit the input {name!r} of model {model.name!r}, which is {type_name}."
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
    """Return the URL of a model in Triton's ``generate`` extension."""
    method = "generate_stream" if stream else "generate"
    return f"{endpoint.scheme}://{endpoint.http}/v2/models/{quote(model, safe='')}/{method}"


def generate_body(values: Mapping[str, Any]) -> bytes:
    """Return the body for Triton's ``generate`` extension, which infers the shapes.

    The body has no request ID, which Triton 2.51 takes for a parameter of the model.
    """
    return json.dumps(values, ensure_ascii=False).encode("utf-8", errors="replace")


SEQUENCE_OUTPUT = "sequence_index"
ANSWER_OUTPUTS = frozenset({TEXT_OUTPUT, IDS_OUTPUT, LENGTH_OUTPUT, LOG_PROBS_OUTPUT, SEQUENCE_OUTPUT})
"""Outputs with an answer, its length, its log probabilities and its index."""
_GENERATE_ERROR = re.compile(rb'^(?:data: ?)?(\{"error".*)', re.MULTILINE)
"""Matches Triton's errors, whose HTTP status can be 200."""


def is_final(response: Any) -> bool:
    """Return whether a ``ModelStreamInferResponse`` ends an answer."""
    return bool(
        response.error_message or response.infer_response.parameters["triton_final_response"].bool_param
    )


def infer_outputs(response: Any, names: Collection[str]) -> Tensors:
    """Return the tensors in ``names`` of a ``ModelInferResponse``.

    Raises WrongResponse if their bytes do not fit their shapes.
    """
    outputs: dict[str, NDArray[Any]] = {}
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=False):
        if output.name not in names:
            continue
        try:
            if output.datatype == "BYTES":
                array = np.array(_strings(raw), dtype=np.object_)
            else:
                array = np.frombuffer(raw, dtype=TYPES[output.datatype])
            outputs[output.name] = array.reshape(tuple(output.shape))
        except (ValueError, KeyError, struct.error) as error:
            raise WrongResponse(f"tensors that cannot be read: {output.name!r}, {error}") from None
    return outputs


def _strings(raw: bytes) -> list[bytes]:
    """Split the bytes of a tensor of length-prefixed strings. Raises ValueError or struct.error."""
    strings, at = [], 0
    while at < len(raw):
        begin = at + 4
        at = begin + struct.unpack_from("<I", raw, at)[0]
        strings.append(raw[begin:at])
    if at > len(raw):
        raise ValueError("a string is cut off")
    return strings


def generate_outputs(body: bytes) -> Tensors:
    """Return the tensors in a body of the ``generate`` extension, without shapes. Raises WrongResponse."""
    try:
        # A response of a stream can end within a UTF-8 character.
        plain = json.loads(body.decode("utf-8", errors="replace"))
    except ValueError:
        raise WrongResponse(f"a body that is not JSON: {body[:200]!r}") from None
    if not isinstance(plain, dict):
        raise WrongResponse(f"JSON without outputs: {body[:200]!r}")
    return {name: _array(value) for name, value in plain.items()}


def _array(value: Any) -> NDArray[Any]:
    items = value if isinstance(value, list) else [value]
    is_plain = all(isinstance(item, (int, float)) for item in items)
    return np.array(items) if is_plain and items else np.array(items, dtype=np.object_)


def generate_error(answer: bytes) -> str | None:
    """Return the server's message if an answer or a stream of the ``generate`` extension has an error."""
    match = _GENERATE_ERROR.search(last_events(answer))
    return None if match is None else error_message(match[1]) or "no error message"


def to_response(outputs: Tensors, *, takes_text: bool) -> Response:
    """Return the response in the outputs of a text or core model, with a part for each beam.

    Raises WrongResponse for outputs of other types.
    """
    lengths = _integers(outputs, LENGTH_OUTPUT)
    sequence = next(iter(_integers(outputs, SEQUENCE_OUTPUT)), 0)
    answers = outputs.get(TEXT_OUTPUT if takes_text else IDS_OUTPUT)
    if answers is None or not answers.size:
        return Response()
    log_probs = outputs.get(LOG_PROBS_OUTPUT, np.empty(0))
    by_beam = log_probs.reshape(-1, log_probs.shape[-1]) if log_probs.size and log_probs.ndim else ()
    parts = []
    for beam, answer in enumerate(_texts(answers) if takes_text else _ids(answers, lengths)):
        length = lengths[beam] if beam < len(lengths) else None
        scores = tuple(map(float, by_beam[beam])) if beam < len(by_beam) else ()
        text, ids = (answer, None) if takes_text else (None, answer)
        parts.append(Part(text, ids, length=length, log_probs=scores, place=(sequence, beam)))
    return Response(parts, logits={name: outputs[name] for name in LOGITS_OUTPUTS if name in outputs})


def _integers(outputs: Tensors, name: str) -> list[int]:
    array = outputs.get(name)
    if array is None:
        return []
    if array.dtype.kind not in "iu" or (array.size and array.min() < 0):
        raise _wrong(name, array)
    return [int(value) for value in array.reshape(-1)]


def _texts(array: NDArray[Any]) -> list[Any]:
    values: list[Any] = array.reshape(-1).tolist()
    if not all(isinstance(value, (bytes, str)) for value in values):
        raise _wrong(TEXT_OUTPUT, array)
    return values


def _ids(array: NDArray[Any], lengths: Sequence[int]) -> list[Any]:
    """Return the token IDs of each beam, without padding."""
    beams = array.reshape(-1, array.shape[-1] if array.ndim else 1)
    if array.dtype.kind not in "iu" or (lengths and len(lengths) != len(beams)):
        raise _wrong(IDS_OUTPUT, array)
    return [beam[: lengths[place] if lengths else None].tolist() for place, beam in enumerate(beams)]


def _wrong(output: str, array: NDArray[Any]) -> WrongResponse:
    return WrongResponse(f"a wrong output {output!r}: {array.dtype} of shape {list(array.shape)}")
