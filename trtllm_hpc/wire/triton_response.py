"""Responses of Triton's models: messages of its gRPC service, and the JSON of its ``generate`` extension."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trtllm_hpc.wire.events import last_events
from trtllm_hpc.wire.response import Part, Response, WrongResponse, error_message
from trtllm_hpc.wire.served_model import IDS_OUTPUT, LENGTH_OUTPUT, LOG_PROBS_OUTPUT, TEXT_OUTPUT
from trtllm_hpc.wire.triton_request import TYPES

if TYPE_CHECKING:
    from numpy.typing import NDArray

Outputs = Mapping[str, "NDArray[Any]"]
"""The tensors of one response by name; texts as ``bytes`` or ``str``."""

ANSWER_OUTPUTS = frozenset({TEXT_OUTPUT, IDS_OUTPUT, LENGTH_OUTPUT, LOG_PROBS_OUTPUT})
"""Those that hold an answer, its length, and the probabilities of its tokens."""


def is_final(response: Any) -> bool:
    """Return whether a ``ModelStreamInferResponse`` ends an answer."""
    return bool(
        response.error_message or response.infer_response.parameters["triton_final_response"].bool_param
    )


def infer_outputs(response: Any, names: Collection[str] | None = None) -> Outputs:
    """Return the tensors of a ``ModelInferResponse``, all of them or those of these names.

    Raises WrongResponse if their bytes do not have the shapes that they claim.
    """
    outputs: dict[str, NDArray[Any]] = {}
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=False):
        if names is not None and output.name not in names:
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


def generate_outputs(body: bytes) -> Outputs:
    """Return the tensors in a body of the ``generate`` extension. Raises WrongResponse."""
    try:
        plain = json.loads(body.decode("utf-8", errors="replace"))
    except ValueError:
        raise WrongResponse(f"what is not JSON: {body[:200]!r}") from None
    if not isinstance(plain, dict):
        raise WrongResponse(f"JSON without outputs: {body[:200]!r}")
    outputs = {name: _array(value) for name, value in plain.items()}
    ids, lengths = outputs.get(IDS_OUTPUT), outputs.get(LENGTH_OUTPUT)
    if ids is not None and lengths is not None and lengths.size and ids.size % lengths.size == 0:
        # JSON has no shape; there is one length for each beam.
        outputs[IDS_OUTPUT] = ids.reshape(lengths.size, -1)
    return outputs


_GENERATE_ERROR = re.compile(rb'^(?:data: ?)?(\{"error".*)', re.MULTILINE)
"""How Triton's errors begin; their HTTP status may be 200."""


def generate_error(answer: bytes) -> str | None:
    """Return the server's message if an answer or a stream of the ``generate`` extension has an error."""
    match = _GENERATE_ERROR.search(last_events(answer))
    return None if match is None else error_message(match[1]) or "no error message"


def _array(value: Any) -> NDArray[Any]:
    items = value if isinstance(value, list) else [value]
    is_plain = all(isinstance(item, (int, float)) for item in items)
    return np.array(items) if is_plain and items else np.array(items, dtype=np.object_)


def to_response(
    outputs: Outputs, *, takes_text: bool, prompts: int = 1, logits: Sequence[str] = ()
) -> Response:
    """Return the tensors of a text model's or a core model's response as typed parts.

    Raises WrongResponse if they are not those of such a model.
    """
    parts: list[Part] = []
    found_logits: dict[int, dict[str, NDArray[Any]]] = {}
    for prompt, row in _rows(outputs, TEXT_OUTPUT if takes_text else IDS_OUTPUT, prompts):
        sequence = _index(row, "sequence_index")
        if named := {name: row[name] for name in logits if name in row}:
            found_logits[prompt] = named
        lengths, log_probs = row.get(LENGTH_OUTPUT), row.get(LOG_PROBS_OUTPUT)
        texts, ids = (_texts(row), []) if takes_text else ([], _ids(row, lengths))
        for beam in range(len(texts) or len(ids)):
            parts.append(
                Part(
                    texts[beam] if texts else None,
                    ids[beam] if ids else None,
                    length=_length(lengths, beam),
                    log_probs=_log_probs(log_probs, beam),
                    prompt_index=prompt,
                    sequence_index=sequence,
                    beam_index=beam,
                )
            )
    return Response(parts, logits=found_logits)


def _rows(outputs: Outputs, answer: str, prompts: int) -> Iterator[tuple[int, Outputs]]:
    """Split a response by prompts: usually it is about one, which ``batch_index`` names."""
    first = outputs.get(answer)
    is_batch = first is not None and first.ndim > 1 and first.shape[0] == prompts
    if prompts == 1 or "batch_index" in outputs or not is_batch:
        yield _index(outputs, "batch_index", below=prompts), outputs
        return
    for row in range(prompts):
        yield row, {name: array[row : row + 1] for name, array in outputs.items() if len(array) == prompts}


def _index(outputs: Outputs, name: str, below: int | None = None) -> int:
    array = outputs.get(name)
    if array is None or not array.size:
        return 0
    value = array.reshape(-1)[0]
    if array.dtype.kind not in "iu" or value < 0 or (below is not None and value >= below):
        raise WrongResponse(f"a wrong output {name!r}: {value!r}")
    return int(value)


def _texts(row: Outputs) -> list[bytes | str]:
    array = row.get(TEXT_OUTPUT)
    if array is None:
        return []
    values: list[bytes | str] = array.reshape(-1).tolist()
    if not all(isinstance(value, (bytes, str)) for value in values):
        raise _wrong(TEXT_OUTPUT, array)
    return values


def _ids(row: Outputs, lengths: NDArray[Any] | None) -> list[list[int]]:
    """Return the token ids of each beam, without what fills them up."""
    array = row.get(IDS_OUTPUT)
    if array is None or not array.size:
        return []
    if array.dtype.kind not in "iu":
        raise _wrong(IDS_OUTPUT, array)
    beams = array.reshape(-1, array.shape[-1])
    if lengths is None:
        return [beam.tolist() for beam in beams]
    if lengths.size != len(beams) or lengths.dtype.kind not in "iu":
        raise _wrong(LENGTH_OUTPUT, lengths)
    return [beam[:length].tolist() for beam, length in zip(beams, lengths.reshape(-1), strict=True)]


def _length(lengths: NDArray[Any] | None, beam: int) -> int | None:
    if lengths is None or beam >= lengths.size or lengths.dtype.kind not in "iu":
        return None
    return int(lengths.reshape(-1)[beam])


def _log_probs(log_probs: NDArray[Any] | None, beam: int) -> Sequence[float]:
    if log_probs is None or not log_probs.ndim or not log_probs.shape[-1]:
        return ()
    beams = log_probs.reshape(-1, log_probs.shape[-1])
    return tuple(float(value) for value in beams[beam]) if beam < len(beams) else ()


def _wrong(output: str, array: NDArray[Any]) -> WrongResponse:
    return WrongResponse(f"a wrong output {output!r}: {array.dtype} of shape {list(array.shape)}")
