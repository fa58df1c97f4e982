"""Requests and replies of Triton's gRPC protocol as bytes.

Requests are serialised before the measurement and replies parsed after it, so
that neither delays a send.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trtllm_hpc.client.tensors import ENSEMBLE, LENGTH_OUTPUT, TextModel, text_inputs

if TYPE_CHECKING:
    from numpy.typing import NDArray

INFER_METHOD = "/inference.GRPCInferenceService/ModelInfer"


def text_request(
    model: str, prompt: str, max_tokens: int, request_id: str, kind: TextModel = ENSEMBLE
) -> bytes:
    """One serialised question to a text model."""
    return infer_request(model, text_inputs(prompt, max_tokens, kind), request_id)


def infer_request(model: str, inputs: Mapping[str, NDArray[Any]], request_id: str = "") -> bytes:
    """One serialised inference request."""
    from tritonclient.grpc import service_pb2
    from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for name, array in inputs.items():
        datatype = np_to_triton_dtype(array.dtype)
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        raw = serialize_byte_tensor(array).item() if datatype == "BYTES" else array.tobytes()
        request.raw_input_contents.append(raw)
    return bytes(request.SerializeToString())


def output_tokens(reply: bytes) -> int | None:
    """The output tokens that the model itself reports; ``None`` if it does not."""
    lengths = _integers(reply, LENGTH_OUTPUT)
    return None if lengths is None else int(lengths.reshape(-1)[0])


def _integers(reply: bytes, name: str) -> NDArray[Any] | None:
    from tritonclient.grpc import service_pb2

    response = service_pb2.ModelInferResponse.FromString(reply)
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=False):
        if output.name == name and output.datatype in ("INT32", "INT64"):
            return np.frombuffer(raw, dtype=output.datatype.lower())
    return None
