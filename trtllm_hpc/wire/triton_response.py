"""Responses of Triton's models: messages of its gRPC service, and the JSON of its ``generate`` extension."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trtllm_hpc.wire.events import last_events
from trtllm_hpc.wire.response import Part, Response, WrongResponse, error_message
from trtllm_hpc.wire.served_model import IDS_OUTPUT, LENGTH_OUTPUT, LOG_PROBS_OUTPUT, TEXT_OUTPUT
from trtllm_hpc.wire.triton_request import TYPES, Tensors

if TYPE_CHECKING:
    from numpy.typing import NDArray

SEQUENCE_OUTPUT = "sequence_index"
ANSWER_OUTPUTS = frozenset({TEXT_OUTPUT, IDS_OUTPUT, LENGTH_OUTPUT, LOG_PROBS_OUTPUT, SEQUENCE_OUTPUT})
"""Those that hold an answer, its length, the probabilities of its tokens, and its index."""
_GENERATE_ERROR = re.compile(rb'^(?:data: ?)?(\{"error".*)', re.MULTILINE)
"""How Triton's errors begin; their HTTP status may be 200."""


def is_final(response: Any) -> bool:
    """Return whether a ``ModelStreamInferResponse`` ends an answer."""
    return bool(
        response.error_message or response.infer_response.parameters["triton_final_response"].bool_param
    )


def infer_outputs(response: Any, names: Collection[str]) -> Tensors:
    """Return the tensors of these names in a ``ModelInferResponse``.

    Raises WrongResponse if their bytes do not have the shapes that they claim.
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
    """Return the strings of a tensor, each of which follows its length. Raises ValueError, struct.error."""
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
        # A response of a stream may end within a letter.
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
    """Return the tensors of a text model's or a core model's response: a part for each beam.

    Raises WrongResponse if they are not those of such a model.
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
    return Response(parts)


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
    """Return the token ids of each beam, without what fills them up."""
    beams = array.reshape(-1, array.shape[-1] if array.ndim else 1)
    if array.dtype.kind not in "iu" or (lengths and len(lengths) != len(beams)):
        raise _wrong(IDS_OUTPUT, array)
    return [beam[: lengths[place] if lengths else None].tolist() for place, beam in enumerate(beams)]


def _wrong(output: str, array: NDArray[Any]) -> WrongResponse:
    return WrongResponse(f"a wrong output {output!r}: {array.dtype} of shape {list(array.shape)}")
