"""Requests as the bytes that are sent, made before the measurement so that making them delays no send."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from trtllm_hpc.bench.load.target import CoreModel, Target
from trtllm_hpc.bench.workload.request import Request
from trtllm_hpc.client.tensors import text_inputs

if TYPE_CHECKING:
    from numpy.typing import NDArray


def encode(request: Request, target: Target, request_id: str = "") -> bytes:
    """One request in the target's protocol: a ``ModelInferRequest``, or the body of ``generate``.

    Raises:
        ValueError: a text for a model that takes token ids, or the other way round.
    """
    inputs = _inputs(request, target)
    if target.protocol == "http":
        return _generate_body(inputs)
    return infer_request(target.model, inputs, request_id)


def infer_request(model: str, inputs: dict[str, NDArray[Any]], request_id: str = "") -> bytes:
    """One serialised ``ModelInferRequest`` of Triton's gRPC service."""
    from tritonclient.grpc import service_pb2
    from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for name, array in inputs.items():
        datatype = np_to_triton_dtype(array.dtype)
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        raw = serialize_byte_tensor(array).item() if datatype == "BYTES" else array.tobytes()
        request.raw_input_contents.append(raw)
    return bytes(request.SerializeToString())


def _inputs(request: Request, target: Target) -> dict[str, NDArray[Any]]:
    kind = target.kind
    shape = (1, 1) if kind.batched else (1,)
    if isinstance(kind, CoreModel):
        inputs = _core_inputs(request, shape)
    elif request.prompt is None:
        raise ValueError(f"model {target.model!r} takes texts, not token ids")
    else:
        inputs = text_inputs(request.prompt, request.max_tokens, kind)
    if target.min_length_input is not None:
        inputs[target.min_length_input] = np.full(shape, request.max_tokens, dtype=np.int32)
    if target.streaming and target.decoupled and target.stream_input is not None:
        inputs[target.stream_input] = np.full(shape, True)
    return inputs


def _core_inputs(request: Request, shape: tuple[int, ...]) -> dict[str, NDArray[Any]]:
    """Upstream's three required inputs. No end token is named: an answer is as long as asked for."""
    if request.token_ids is None:
        raise ValueError("a core model takes token ids, not a text")
    ids = np.array(request.token_ids, dtype=np.int32)
    return {
        "input_ids": ids.reshape((*shape[:-1], ids.size)),
        "input_lengths": np.full(shape, ids.size, dtype=np.int32),
        "request_output_len": np.full(shape, request.max_tokens, dtype=np.int32),
    }


def _generate_body(inputs: dict[str, NDArray[Any]]) -> bytes:
    """The body for Triton's ``generate`` extension, which finds the shapes itself.

    It has no id: Triton (seen at 2.51) takes that for a parameter of the model.
    """
    body: dict[str, Any] = {}
    for name, array in inputs.items():
        values = [
            value.decode() if isinstance(value, bytes) else value for value in array.reshape(-1).tolist()
        ]
        body[name] = values if name == "input_ids" else values[0]
    return json.dumps(body, ensure_ascii=False).encode("utf-8", errors="replace")
