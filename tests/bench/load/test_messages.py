"""Requests are serialised and replies parsed, without a server."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2
from tritonclient.utils import serialize_byte_tensor

from tests.bench.load.grpc_server import endpoint
from tests.bench.models import CORE, UNBATCHED_CORE
from trtllm_hpc.bench.load.messages import (
    Chunk,
    LoadReply,
    ParsedReply,
    Target,
    encode_request,
    parse_reply,
)
from trtllm_hpc.bench.workload.request import WorkloadRequest
from trtllm_hpc.wire.served_model import ENSEMBLE

GRPC = Target(endpoint(1), "ensemble")
HTTP = Target(endpoint(1), "ensemble", protocol="http")
IDS = WorkloadRequest(7, token_ids=(5, 6, 7))


def inputs(payload: bytes) -> dict[str, tuple[str, list[int], bytes]]:
    message = service_pb2.ModelInferRequest.FromString(payload)
    raw = message.raw_input_contents
    return {
        tensor.name: (tensor.datatype, list(tensor.shape), content)
        for tensor, content in zip(message.inputs, raw, strict=True)
    }


def int32(value: int) -> bytes:
    return value.to_bytes(4, "little")


def test_a_text_request_has_upstreams_four_inputs() -> None:
    payload = encode_request(WorkloadRequest(9, "é"), GRPC, "17")
    message = service_pb2.ModelInferRequest.FromString(payload)
    assert (message.model_name, message.id) == ("ensemble", "17")
    assert inputs(payload) == {
        "text_input": ("BYTES", [1, 1], b"\x02\0\0\0" + "é".encode()),
        "max_tokens": ("INT32", [1, 1], int32(9)),
        "bad_words": ("BYTES", [1, 1], int32(0)),
        "stop_words": ("BYTES", [1, 1], int32(0)),
    }


def test_a_core_request_has_ids_and_their_number() -> None:
    assert inputs(encode_request(IDS, Target(endpoint(1), "tensorrt_llm", CORE))) == {
        "input_ids": ("INT32", [1, 3], int32(5) + int32(6) + int32(7)),
        "input_lengths": ("INT32", [1, 1], int32(3)),
        "request_output_len": ("INT32", [1, 1], int32(7)),
    }
    unbatched = inputs(encode_request(IDS, Target(endpoint(1), "tensorrt_llm", UNBATCHED_CORE)))
    assert {name: shape for name, (_, shape, _) in unbatched.items()} == {
        "input_ids": [3],
        "input_lengths": [1],
        "request_output_len": [1],
    }


@pytest.mark.parametrize(
    ("streaming", "decoupled", "sent"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_only_decoupled_models_get_the_streaming_input(streaming: bool, decoupled: bool, sent: bool) -> None:
    target = Target(endpoint(1), "m", streaming=streaming, decoupled=decoupled, stream_input="stream")
    assert inputs(encode_request(WorkloadRequest(9, "x"), target)).get("stream") == (
        ("BOOL", [1, 1], b"\1") if sent else None
    )


def test_generate_gets_plain_json_without_an_id() -> None:
    expected = {"text_input": "“é”", "max_tokens": 9, "bad_words": "", "stop_words": ""}
    assert json.loads(encode_request(WorkloadRequest(9, "“é”"), HTTP, "3")) == expected
    core = Target(endpoint(1), "tensorrt_llm", CORE, "http")
    assert json.loads(encode_request(IDS, core)) == {
        "input_ids": [5, 6, 7],
        "input_lengths": 3,
        "request_output_len": 7,
    }


def test_ids_for_text_models_and_texts_for_core_models_are_refused() -> None:
    with pytest.raises(ValueError, match="accepts texts"):
        encode_request(IDS, GRPC)
    with pytest.raises(ValueError, match="token IDs"):
        encode_request(WorkloadRequest(7, "x"), Target(endpoint(1), "m", CORE))


def response(**outputs: Any) -> Any:
    message = service_pb2.ModelInferResponse()
    for name, value in outputs.items():
        array = np.array(value)
        if array.dtype.kind == "i":
            array = array.astype(np.int32)
            message.outputs.add(name=name, datatype="INT32", shape=array.shape)
            message.raw_output_contents.append(array.tobytes())
        else:
            message.outputs.add(name=name, datatype="BYTES", shape=array.shape)
            message.raw_output_contents.append(serialize_byte_tensor(array.astype(object)).item())
    return message


def reply(*chunks: Any) -> LoadReply:
    raw = [chunk if isinstance(chunk, bytes) else chunk.SerializeToString() for chunk in chunks]
    return LoadReply(
        0, 0.0, 0.0, 9.0, chunks=[(float(time_s), one) for time_s, one in enumerate(raw, start=1)]
    )


def test_an_answer_is_parsed() -> None:
    found = parse_reply(reply(response(text_output=["hi"], sequence_length=[[4]])), GRPC)
    assert found == ParsedReply((Chunk(1.0, "hi"),), streamed=False)
    assert (found.text, found.token_ids) == ("hi", None)


def test_the_empty_response_that_ends_a_stream_is_left_out() -> None:
    def streamed(**outputs: Any) -> Any:
        return service_pb2.ModelStreamInferResponse(infer_response=response(**outputs))

    target = Target(endpoint(1), "m", CORE, streaming=True, decoupled=True)
    found = parse_reply(reply(streamed(output_ids=[[[8]]]), streamed(output_ids=[[[9]]]), streamed()), target)
    assert [(chunk.time_s, chunk.token_ids) for chunk in found.chunks] == [(1.0, (8,)), (2.0, (9,))]
    assert found.token_ids == (8, 9) and found.streamed


def test_json_answers_are_parsed_to_the_same() -> None:
    core = Target(endpoint(1), "m", CORE, "http", streaming=True)
    pieces = (b'data: {"output_ids":[4,5],"sequence_length":2}\n\nda', b'ta: {"output_ids":6}\n\n')
    found = parse_reply(reply(*pieces), core)
    assert [chunk.token_ids for chunk in found.chunks] == [(4, 5), (6,)]
    assert parse_reply(reply(b'{"text_output":"hi","sequence_length":3}'), HTTP) == ParsedReply(
        (Chunk(1.0, "hi"),)
    )


def test_of_texts_that_repeat_those_before_the_new_letters_count() -> None:
    """Decoded from all bytes so far, as BLS does with ``accumulate_tokens``."""
    written = "a\u20acb\u00e9 so"
    texts = [written.encode()[:end].decode(errors="replace") for end in range(1, 11)]
    assert texts[1:4] == ["a\ufffd", "a\ufffd", "a\u20ac"]
    bls = replace(ENSEMBLE, accumulates=True)
    streamed = Target(endpoint(1), "tensorrt_llm_bls", bls, streaming=True, decoupled=True)
    messages = [
        service_pb2.ModelStreamInferResponse(infer_response=response(text_output=[text])) for text in texts
    ]
    found = parse_reply(reply(*messages), streamed)
    assert [chunk.text for chunk in found.chunks] == ["a", "", "", "\u20ac", "b", "", "\u00e9", *" so"]
    assert found.text == written


@pytest.mark.parametrize("raw", [b"\xff\xff", b"", b"[1]", b"{", b"null"])
@pytest.mark.parametrize("target", [GRPC, HTTP, Target(endpoint(1), "m", streaming=True)])
def test_invalid_answers_have_no_chunks(target: Target, raw: bytes) -> None:
    assert parse_reply(reply(raw), target).chunks == ()
