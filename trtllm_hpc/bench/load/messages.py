"""Requests as the bytes that are sent, and replies as the bytes that came back.

Requests are serialised before the measurement and replies parsed after it, so that neither delays a send.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from trtllm_hpc.bench.load import openai
from trtllm_hpc.bench.records import OK
from trtllm_hpc.bench.workload.request import Request
from trtllm_hpc.client.connection import infer_request
from trtllm_hpc.client.lora import TASK_ID_INPUT, Adapter, task_inputs
from trtllm_hpc.client.served_model import LENGTH_OUTPUT, TEXT_OUTPUT, TextModel, text_inputs
from trtllm_hpc.config.benchmark import OPENAI_PROTOCOLS, Protocol
from trtllm_hpc.runtime.records import Endpoint

if TYPE_CHECKING:
    from numpy.typing import NDArray

_IDS_OUTPUT = "output_ids"
_INTEGER_TYPES = {"INT32": "<i4", "INT64": "<i8", "UINT32": "<u4", "UINT64": "<u8"}


@dataclass(frozen=True)
class CoreModel:
    """A model that takes token ids, upstream's ``tensorrt_llm``."""

    batched: bool = True
    """Whether its inputs have a batch dimension."""


@dataclass(frozen=True)
class Target:
    """A served model and how requests are sent to it; see :func:`trtllm_hpc.bench.targets.targets_of`."""

    endpoint: Endpoint
    model: str
    kind: TextModel | CoreModel = field(default_factory=TextModel)
    protocol: Protocol = "grpc"
    streaming: bool = False
    """Whether answers are requested as a stream."""
    timeout_s: float = 60.0
    """For each request, from its send."""
    decoupled: bool = False
    """Whether the model may answer in several responses."""
    stream_input: str | None = None
    """Name of the input that makes a decoupled model stream its tokens."""
    min_length_input: str | None = None
    """Input that keeps answers from ending early, sent with the requested length; ``None`` sends none. Over
    OpenAI's protocol its key ``min_tokens``."""
    instance: int | None = None
    """The one behind the door that gets the requests, over gRPC; ``None``: any."""

    @property
    def token_ids(self) -> bool:
        """Whether it takes token ids instead of a text."""
        return isinstance(self.kind, CoreModel)

    @property
    def is_openai(self) -> bool:
        """Whether it is asked over OpenAI's protocol."""
        return self.protocol in OPENAI_PROTOCOLS

    @property
    def uses_stream_call(self) -> bool:
        """Whether gRPC needs ``ModelStreamInfer``: Triton refuses ``ModelInfer`` to decoupled models."""
        return self.protocol == "grpc" and (self.streaming or self.decoupled)


def encode_request(request: Request, target: Target, request_id: str = "") -> bytes:
    """Return a request in the target's protocol: a ``ModelInferRequest``, or a body in JSON.

    Raises ValueError for a text to a model that takes token ids, or the other way round.
    """
    if target.is_openai:
        exact = target.min_length_input is not None
        return openai.encode(request, target.protocol, target.model, streaming=target.streaming, exact=exact)
    inputs = _inputs(request, target)
    if target.protocol == "http":
        return _generate_body(inputs)
    return bytes(infer_request(target.model, inputs, request_id).SerializeToString())


def encode_weights(adapter: Adapter) -> bytes:
    """Return what makes a serialised request with a known adapter one that makes it known.

    It is appended to the request: Protocol Buffers join the lists of two messages, here those of the inputs
    and of their contents, and what is empty in the second stays as it was in the first.
    """
    more = {name: array for name, array in adapter.inputs().items() if name != TASK_ID_INPUT}
    return bytes(infer_request("", more).SerializeToString())


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
    if request.lora_task_id is not None:
        inputs |= task_inputs(request.lora_task_id)
    return inputs


def _core_inputs(request: Request, shape: tuple[int, ...]) -> dict[str, NDArray[Any]]:
    """Upstream's three required inputs. No end token is sent, so answers have the requested length."""
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

    It has no id: Triton (seen at 2.51) takes one for a parameter of the model.
    """
    body: dict[str, Any] = {}
    for name, array in inputs.items():
        values = [
            value.decode() if isinstance(value, bytes) else value for value in array.reshape(-1).tolist()
        ]
        body[name] = values if name == "input_ids" else values[0]
    return json.dumps(body, ensure_ascii=False).encode("utf-8", errors="replace")


@dataclass(slots=True)
class Reply:
    """What came back for one request. Times are seconds of the measurement's clock."""

    index: int
    """Index of the request in the workload."""
    due_s: float
    """When it was to be sent. In a closed loop: when the slot that it took became free."""
    sent_s: float
    """Right before the call was made."""
    ended_s: float
    """When the whole answer, or the error, had arrived."""
    status: str = OK
    """``ok``, or what failed: the gRPC status code such as ``DEADLINE_EXCEEDED``, or ``HTTP 500``."""
    error: str | None = None
    chunks: list[tuple[float, bytes]] = field(default_factory=list)
    """Each response with its time of arrival, as bytes of the protocol; one unless streamed. Of a stream of
    OpenAI's protocol each piece, as the network brought it."""
    resent: bool = False
    """Whether it was sent a second time, with the weights of its LoRA adapter, which the server lacked."""

    @property
    def ok(self) -> bool:
        """Whether a whole answer came."""
        return self.status == OK


@dataclass(frozen=True)
class Chunk:
    """One response that has output."""

    time_s: float
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    """New ids, first sequence."""
    sequence_length: int | None = None
    """As the model reports it, first sequence; ``None`` if it does not."""


@dataclass(frozen=True)
class ParsedReply:
    """The answer to one request; empty if there was none."""

    chunks: tuple[Chunk, ...] = ()
    """Without the empty response that ends a stream; over OpenAI's protocol, without any that has no text."""
    streamed: bool = False
    usage: openai.Usage | None = None
    """The server's own count; ``None`` if it has not told one."""

    @property
    def text(self) -> str | None:
        """The whole text; ``None`` from a model without one."""
        texts = [chunk.text for chunk in self.chunks if chunk.text is not None]
        return "".join(texts) if texts else None

    @property
    def token_ids(self) -> tuple[int, ...] | None:
        """All ids in order, with the prompt's where the model repeats them; ``None`` from a text model."""
        parts = [chunk.token_ids for chunk in self.chunks if chunk.token_ids is not None]
        return tuple(token for part in parts for token in part) if parts else None


def parse_reply(reply: Reply, target: Target) -> ParsedReply:
    """Parse the responses to one request. Those without output, or in no known format, are left out."""
    if target.is_openai:
        return _parse_openai(reply, target)
    chunks = (_chunk(time_s, raw, target) for time_s, raw in reply.chunks)
    return ParsedReply(tuple(chunk for chunk in chunks if chunk is not None), target.streaming)


def _parse_openai(reply: Reply, target: Target) -> ParsedReply:
    whole = (openai.Event(*response) for response in reply.chunks)
    chunks, usage = list[Chunk](), None
    for event in openai.events(reply.chunks) if target.streaming else whole:
        part = openai.parse(event.data)
        if part is None:
            continue
        usage = part.usage or usage
        if part.text:
            chunks.append(Chunk(event.time_s, part.text))
    return ParsedReply(tuple(chunks), target.streaming, usage)


def _chunk(time_s: float, raw: bytes, target: Target) -> Chunk | None:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        outputs = _generate_outputs(raw) if target.protocol == "http" else _infer_outputs(raw, target)
    except (DecodeError, ValueError):
        return None
    text, ids, lengths = (outputs.get(name) for name in (TEXT_OUTPUT, _IDS_OUTPUT, LENGTH_OUTPUT))
    if text is None and not ids:
        return None
    length = int(lengths[0]) if lengths else None
    if ids is not None:
        # Beams follow one another, all as long as the longest.
        ids = tuple(ids[: len(ids) // max(1, len(lengths or ()))][:length])
    return Chunk(time_s, text, ids, length)


def _generate_outputs(raw: bytes) -> dict[str, Any]:
    """Outputs of an answer of the ``generate`` extension: lists of numbers, one text."""
    answer = json.loads(raw)
    if not isinstance(answer, dict):
        return {}
    outputs = {
        name: value if isinstance(value, list) else [value]
        for name in (_IDS_OUTPUT, LENGTH_OUTPUT)
        if (value := answer.get(name)) is not None
    }
    text = answer.get(TEXT_OUTPUT)
    return {**outputs, TEXT_OUTPUT: text[0] if isinstance(text, list) and text else text}


def _infer_outputs(raw: bytes, target: Target) -> dict[str, Any]:
    from tritonclient.grpc import service_pb2

    if target.uses_stream_call:
        response = service_pb2.ModelStreamInferResponse.FromString(raw).infer_response
    else:
        response = service_pb2.ModelInferResponse.FromString(raw)
    outputs: dict[str, Any] = {}
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=False):
        if output.name == TEXT_OUTPUT and output.datatype == "BYTES" and len(raw) >= 4:
            # Each string is preceded by its length.
            end = 4 + int.from_bytes(raw[:4], "little")
            outputs[TEXT_OUTPUT] = raw[4:end].decode("utf-8", errors="replace")
        elif output.name in (_IDS_OUTPUT, LENGTH_OUTPUT) and output.datatype in _INTEGER_TYPES:
            outputs[output.name] = np.frombuffer(raw, dtype=_INTEGER_TYPES[output.datatype]).tolist()
    return outputs
