"""Servers that answer wrongly, or in the middle of a letter: right where it can be, else one sentence."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import grpc  # type: ignore[import-untyped]
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.waiting import eventually
from trtllm_hpc.client.connect import Address
from trtllm_hpc.client.sync_client import Client
from trtllm_hpc.errors import AnswerTimedOut, InvalidRequest, RequestFailed, ServerUnreachable

from .fake_triton import FakeTriton, response, serialized, serving, text

TEXTS = ("ensemble", {"text_input": "TYPE_STRING", "max_tokens": "TYPE_INT32", "stream": "TYPE_BOOL"})
IDS = ("tensorrt_llm", dict.fromkeys(("input_ids", "input_lengths", "request_output_len"), "TYPE_INT32"))


@pytest.fixture
def server() -> FakeTriton:
    return FakeTriton()


@pytest.fixture
def asking(server: FakeTriton) -> Iterator[Client]:
    with serving(server, TEXTS) as endpoint, Client(endpoint, timeout_s=10, retries=0) as client:
        yield client


@pytest.mark.parametrize(
    ("prompt", "options", "sentence"),
    [
        ("x", {"min_p": 0.1}, r"has no input for --min-p \(min_p\)"),
        ("x", {"context_logits": True}, r"has no input for --context-logits \(return_context_logits\)"),
        ("x", {"inputs": {"erly_stopping": False}}, "has no input 'erly_stopping'"),
        ("x", {"max_tokens": 2**31}, "does not fit the input 'max_tokens'"),
        ([1, 2], {}, "accepts texts, not token IDs"),
    ],
)
def test_what_a_model_does_not_take_is_not_sent(
    server: FakeTriton, asking: Client, prompt: Any, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        asking.generate(prompt, **options)
    assert server.calls == 0


def test_a_letter_that_comes_in_two_responses_is_whole(server: FakeTriton, asking: Client) -> None:
    letters = "straße 東京 🙂".encode()
    server.stream = [text(bytes([byte])) for byte in letters] + [response(final=True)]
    assert "".join(asking.stream("x")) == letters.decode()
    server.stream = [text("ü".encode()[:1]), text(b"x"), text("🙂".encode()[:2], final=True)]
    assert asking.generate("x").text == "\N{REPLACEMENT CHARACTER}x\N{REPLACEMENT CHARACTER}"


def test_a_text_of_ten_megabytes(server: FakeTriton, asking: Client) -> None:
    server.stream = [text(b"0123456789" * 1_000_000, final=True)]
    assert len(asking.generate("x").text) == 10_000_000


@pytest.mark.parametrize(
    ("stream", "sentence"),
    [
        ([text(b"HALF")], "ended its stream after 1 responses"),
        ([response(True, other=("INT32", [1], b"\0\0\0\0"))], "answered without a text"),
        ([response(True, text_output=("INT32", [1], b"\0\0\0\0"))], "wrong output 'text_output'"),
        ([response(True, text_output=("BYTES", [1, 1], b"\x09\0\0\0cut"))], "unreadable tensor"),
        ([service_pb2.ModelStreamInferResponse(error_message="out of luck")], "out of luck"),
        ([text(b"HALF"), grpc.StatusCode.UNAVAILABLE], "was lost after 1 responses"),
        ([grpc.StatusCode.INTERNAL], "lost"),
    ],
)
def test_a_wrong_answer_is_one_sentence(
    server: FakeTriton, asking: Client, stream: list[Any], sentence: str
) -> None:
    server.stream = stream
    with pytest.raises(RequestFailed, match=sentence) as caught:
        asking.generate("x")
    assert not isinstance(caught.value, (ServerUnreachable, AnswerTimedOut))


def test_missing_logits_are_named(server: FakeTriton) -> None:
    name, inputs = TEXTS
    model = (name, {**inputs, "return_generation_logits": "TYPE_BOOL"})
    server.stream = [text(b"HELLO", final=True)]
    with serving(server, model) as endpoint, Client(endpoint) as client:
        with pytest.raises(RequestFailed, match="answered without generation_logits"):
            client.generate("x", generation_logits=True)
        assert client.generate("x").text == "HELLO"


@pytest.mark.parametrize("model", [TEXTS, IDS])
def test_no_answer_is_too_wrong(model: tuple[str, dict[str, str]]) -> None:
    """300 answers of random tensors: each is taken, or refused in one sentence, and none is waited for."""
    drawn, server = random.Random(5), FakeTriton()
    prompt: Any = "x" if model is TEXTS else [1, 2]
    outcomes = {"answer": 0, "sentence": 0}
    with serving(server, model) as endpoint, Client(endpoint, timeout_s=10, retries=0) as client:
        for _ in range(300):
            server.stream = [random_response(drawn) for _ in range(drawn.randint(0, 3))]
            try:
                client.generate(prompt)
                outcomes["answer"] += 1
            except RequestFailed as error:
                assert not isinstance(error, AnswerTimedOut) and "Traceback" not in error.message
                outcomes["sentence"] += 1
    assert all(outcomes.values()), outcomes


def random_response(drawn: random.Random) -> Any:
    names = ["text_output", "output_ids", "sequence_length", "sequence_index", "output_log_probs"]
    outputs = {}
    for name in drawn.sample(names, drawn.randint(0, 4)):
        shape = [drawn.choice([0, 1, 1, 1, 2, 3]) for _ in range(drawn.randint(0, 3))]
        datatype = drawn.choice(["BYTES", "BYTES", "INT32", "INT32", "FP32", "BOOL", "UINT64", "NOSUCH", ""])
        count = max(int(np.prod(shape)) + drawn.choice([0, 0, 0, 0, 1, -1]), 0)
        raw = b"".join([serialized(b"ab")] * count) if datatype == "BYTES" else drawn.randbytes(4 * count)
        outputs[name] = (datatype, shape, raw)
    return response(drawn.random() < 0.6, **outputs)


def test_a_lost_server_is_asked_again_only_before_the_first_part(server: FakeTriton) -> None:
    with serving(server, TEXTS) as endpoint, Client(endpoint, retries=2) as client:
        server.stream = [grpc.StatusCode.UNAVAILABLE]
        with pytest.raises(ServerUnreachable):
            client.generate("x")
        assert server.calls == 3
        server.stream = [text(b"HALF"), grpc.StatusCode.UNAVAILABLE]
        with pytest.raises(RequestFailed, match="was lost after 1 responses"):
            client.generate("x")
        assert server.calls == 4


@pytest.mark.parametrize(
    "last",
    [text(b"HELLO", final=True), service_pb2.ModelStreamInferResponse(error_message="no place left")],
    ids=["answered", "refused"],
)
def test_a_call_that_has_ended_is_closed_and_not_cancelled(server: FakeTriton, last: Any) -> None:
    """Triton 2.51 loses a call that is cancelled just as it ends, and waits 30 s for it when it stops."""
    server.stream, server.waits_for_end = [last], True
    with serving(server, TEXTS) as endpoint:
        with Client(endpoint) as client, suppress(RequestFailed):
            client.generate("hello", max_tokens=4)
        assert eventually(lambda: server.ends) == ["closed"]


def test_a_call_that_is_given_up_is_cancelled(server: FakeTriton) -> None:
    server.waits_for_end = True
    with serving(server, TEXTS) as endpoint:
        with Client(endpoint, timeout_s=2) as client, pytest.raises(AnswerTimedOut):
            client.generate("hello", max_tokens=4)
        assert eventually(lambda: server.ends) == ["cancelled"]


def test_tritons_http_port_is_refused_by_name(server: FakeTriton) -> None:
    with (
        serving(server, TEXTS) as endpoint,
        pytest.raises(InvalidRequest, match="Triton's HTTP port") as caught,
    ):
        Client(Address(f"http://127.0.0.1:{endpoint.http_port}"))
    assert "grpc://" in str(caught.value.hint)
