"""What came back: kept raw during the measurement, parsed after it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trtllm_hpc.bench.load.target import Target
from trtllm_hpc.bench.records import OK
from trtllm_hpc.bench.summary import ClientUse
from trtllm_hpc.client.tensors import LENGTH_OUTPUT, TEXT_OUTPUT

_IDS_OUTPUT = "output_ids"
_NUMBERS = {"INT32": "<i4", "INT64": "<i8", "UINT32": "<u4", "UINT64": "<u8"}


@dataclass(slots=True)
class Reply:
    """One request's fate. Times are seconds of the measurement's clock."""

    index: int
    """Index in the workload."""
    due_s: float
    """When it was to be sent. In a closed loop: when the slot that it took became free."""
    sent_s: float
    """Right before the call was made."""
    ended_s: float
    """When the whole answer, or the error, was there."""
    status: str = OK
    """``ok``, or what failed: the gRPC status code such as ``DEADLINE_EXCEEDED``, or ``HTTP 500``."""
    error: str | None = None
    """The server's own words."""
    chunks: list[tuple[float, bytes]] = field(default_factory=list)
    """Each response with the time when it came, as bytes of the protocol; one unless streamed."""

    @property
    def ok(self) -> bool:
        """Whether a whole answer came."""
        return self.status == OK


@dataclass(frozen=True)
class Load:
    """What one pass has brought."""

    replies: list[Reply]
    """In the order of sending; those that were outstanding when it was ended early are missing."""
    client: ClientUse
    start_s: float
    """When the schedule began; times of requests that were due later count from here."""
    interrupted: bool = False
    """Whether Ctrl-C ended it early."""
    full_until_s: float | None = None
    """Closed loop of several processes: when the first of them sent its last; else ``None``."""
    gone: bool = False
    """Whether it was ended early because the server was gone, see :mod:`trtllm_hpc.bench.load.absence`."""


@dataclass(frozen=True)
class Chunk:
    """One response that brought output."""

    time_s: float
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    """New ids, first sequence."""
    sequence_length: int | None = None
    """What the model itself says, first sequence; ``None`` if it does not."""


@dataclass(frozen=True)
class Parsed:
    """The answer to one request; nothing in it if there was none."""

    chunks: tuple[Chunk, ...] = ()
    """Without the empty response that ends a stream."""
    streamed: bool = False

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

    @property
    def sequence_length(self) -> int | None:
        """The last length that the model told; ``None`` if it told none."""
        lengths = [chunk.sequence_length for chunk in self.chunks if chunk.sequence_length is not None]
        return lengths[-1] if lengths else None


def parse(reply: Reply, target: Target) -> Parsed:
    """Read the raw responses of one request; those without output, or of no known form, are left out.

    Args:
        target: whom it was sent to.
    """
    read = _generated if target.protocol == "http" else _streamed if target.by_stream else _inferred
    chunks = (_chunk(time_s, raw, read) for time_s, raw in reply.chunks)
    return Parsed(tuple(chunk for chunk in chunks if chunk is not None), target.streaming)


def _chunk(time_s: float, raw: bytes, read: Callable[[bytes], dict[str, Any]]) -> Chunk | None:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        outputs = read(raw)
    except (DecodeError, ValueError):
        return None
    text, ids, lengths = (outputs.get(name) for name in (TEXT_OUTPUT, _IDS_OUTPUT, LENGTH_OUTPUT))
    if text is None and not ids:
        return None
    told = int(lengths[0]) if lengths else None
    if ids is not None:
        # Beams lie one after the other, all as long as the longest.
        ids = tuple(ids[: len(ids) // max(1, len(lengths or ()))][:told])
    return Chunk(time_s, text, ids, told)


def _generated(raw: bytes) -> dict[str, Any]:
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


def _streamed(raw: bytes) -> dict[str, Any]:
    from tritonclient.grpc import service_pb2

    return _outputs(service_pb2.ModelStreamInferResponse.FromString(raw).infer_response)


def _inferred(raw: bytes) -> dict[str, Any]:
    from tritonclient.grpc import service_pb2

    return _outputs(service_pb2.ModelInferResponse.FromString(raw))


def _outputs(response: Any) -> dict[str, Any]:
    """The three that count, of a ``ModelInferResponse``."""
    outputs: dict[str, Any] = {}
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=False):
        if output.name == TEXT_OUTPUT and output.datatype == "BYTES" and len(raw) >= 4:
            # Each string has its length before it.
            end = 4 + int.from_bytes(raw[:4], "little")
            outputs[TEXT_OUTPUT] = raw[4:end].decode("utf-8", errors="replace")
        elif output.name in (_IDS_OUTPUT, LENGTH_OUTPUT) and output.datatype in _NUMBERS:
            outputs[output.name] = np.frombuffer(raw, dtype=_NUMBERS[output.datatype]).tolist()
    return outputs
