"""Servers that answer wrongly, or in the middle of a letter: right where it can be, else one sentence."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc  # type: ignore[import-untyped]
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import serialize_byte_tensor

from tests.waiting import eventually
from trtllm_hpc.client.connect import Address
from trtllm_hpc.client.sync_client import Client
from trtllm_hpc.errors import AnswerTimedOut, InvalidRequest, RequestFailed, ServerUnreachable
from trtllm_hpc.runtime.records import Endpoint

TEXTS = ("ensemble", {"text_input": "TYPE_STRING", "max_tokens": "TYPE_INT32", "stream": "TYPE_BOOL"})
IDS = ("tensorrt_llm", {"input_ids": "TYPE_INT32", "request_output_len": "TYPE_INT32"})


class Server(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Triton's two services with answers that a test chooses."""

    def __init__(self) -> None:
        self.stream: list[Any] = []
        """Responses to a gRPC request, in order; an exception ends the call with this status."""
        self.waits_for_end = False
        """Whether a call goes on after the last response until the client ends it."""
        self.ends: list[str] = []
        """How the client ended these calls."""
        self.status, self.body = 200, b""
        """Of an answer over HTTP; ``None`` as the body closes the connection."""
        self.calls = 0

    def ModelStreamInfer(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        next(requests)
        self.calls += 1
        for response in self.stream:
            if isinstance(response, grpc.StatusCode):
                context.abort(response, "lost")
            yield response
        if self.waits_for_end:
            with suppress(Exception):  # grpc raises a bare one when the client cancels
                list(requests)
            time.sleep(0.1)  # a cancellation may come close behind
            self.ends.append("closed" if context.is_active() else "cancelled")


def response(final: bool = False, **outputs: tuple[str, list[int], bytes]) -> Any:
    """A response with outputs of a type, a shape and bytes that need not fit together."""
    made = service_pb2.ModelInferResponse()
    made.parameters["triton_final_response"].bool_param = final
    for name, (datatype, shape, raw) in outputs.items():
        made.outputs.add(name=name, datatype=datatype, shape=shape)
        made.raw_output_contents.append(raw)
    return service_pb2.ModelStreamInferResponse(infer_response=made)


def text(value: bytes, *, final: bool = False) -> Any:
    return response(final, text_output=("BYTES", [1, 1], serialized(value)))


def serialized(*values: bytes) -> bytes:
    return bytes(serialize_byte_tensor(np.array(values, dtype=object)).item())


@contextmanager
def serving(server: Server, model: tuple[str, dict[str, str]]) -> Iterator[Endpoint]:
    name, inputs = model

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            entries = [{"name": it, "data_type": datatype} for it, datatype in inputs.items()]
            config = {"input": entries, "max_batch_size": 8, "model_transaction_policy": {"decoupled": True}}
            self._send(200, json.dumps(config).encode())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            server.calls += 1
            if server.body is not None:
                self._send(server.status, server.body)

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
    grpc_server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.max_send_message_length", -1)])
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(server, grpc_server)
    port = grpc_server.add_insecure_port("127.0.0.1:0")
    grpc_server.start()
    try:
        yield Endpoint("1", "here", "127.0.0.1", http.server_port, port, 1, [name], 0.0)
    finally:
        grpc_server.stop(None).wait()
        http.shutdown()
        http.server_close()


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def asking(server: Server) -> Iterator[Client]:
    with serving(server, TEXTS) as endpoint, Client(endpoint, timeout_s=10, retries=0) as client:
        yield client


@pytest.fixture
def over_http(server: Server) -> Iterator[Client]:
    with (
        serving(server, TEXTS) as endpoint,
        Client(endpoint, protocol="http", timeout_s=10, retries=0) as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("prompt", "options", "sentence"),
    [
        ("x", {"min_p": 0.1}, r"has no input for --min-p \(min_p\)"),
        ("x", {"inputs": {"erly_stopping": False}}, "has no input 'erly_stopping'"),
        ("x", {"logits": ["context_logits"]}, "cannot be asked for context_logits"),
        ([1, 2], {}, "takes text, not token ids"),
    ],
)
def test_what_a_model_does_not_take_is_not_sent(
    server: Server, asking: Client, prompt: Any, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        asking.generate(prompt, **options)
    assert server.calls == 0


def test_a_letter_that_comes_in_two_responses_is_whole(server: Server, asking: Client) -> None:
    letters = "straße 東京 🙂".encode()
    server.stream = [text(bytes([byte])) for byte in letters] + [response(final=True)]
    assert "".join(asking.stream("x")) == letters.decode()
    server.stream = [text("ü".encode()[:1]), text(b"x"), text("🙂".encode()[:2], final=True)]
    assert asking.generate("x").text == "\N{REPLACEMENT CHARACTER}x\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("pieces", [1, 4])
def test_texts_of_ten_megabytes(server: Server, asking: Client, pieces: int) -> None:
    part = b"0123456789" * (10_000_000 // 10 // pieces)
    server.stream = [text(part) for _ in range(pieces)] + [response(final=True)]
    assert asking.generate("x").text == part.decode() * pieces


@pytest.mark.parametrize(
    ("stream", "sentence"),
    [
        ([text(b"HALF")], "broke off its answer after 1 responses"),
        ([response(final=True)], "without a 'text_output' output"),
        ([response(True, other=("INT32", [1], b"\0\0\0\0"))], "without a 'text_output' output"),
        ([response(True, text_output=("INT32", [1], b"\0\0\0\0"))], "wrong output 'text_output'"),
        ([response(True, text_output=("BYTES", [1, 1], b"\x09\0\0\0cut"))], "cannot be read"),
        ([response(True, text_output=("FP32", [2, 2], b"\0\0\0\0"))], "cannot be read"),
        (
            [
                response(
                    True,
                    text_output=("BYTES", [1], serialized(b"A")),
                    batch_index=("INT32", [1], b"\7\0\0\0"),
                )
            ],
            "wrong output 'batch_index'",
        ),
        ([service_pb2.ModelStreamInferResponse(error_message="out of luck")], "out of luck"),
        ([text(b"HALF"), grpc.StatusCode.UNAVAILABLE], "was lost after 1 responses"),
        ([grpc.StatusCode.INTERNAL], "lost"),
    ],
)
def test_a_wrong_answer_is_one_sentence(
    server: Server, asking: Client, stream: list[Any], sentence: str
) -> None:
    server.stream = stream
    with pytest.raises(RequestFailed, match=sentence) as caught:
        asking.generate("x")
    assert not isinstance(caught.value, (ServerUnreachable, AnswerTimedOut))


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (200, b"", "is not JSON"),
        (200, b"[1]", "without outputs"),
        (200, b'{"text_output": 7}', "wrong output 'text_output'"),
        (200, b'{"text_output": [{"a": 1}]}', "wrong output 'text_output'"),
        (200, b'{"other": "a"}', "without a 'text_output' output"),
        (200, b'{"error": "out of luck"}', "out of luck"),
        (400, b'{"error": "out of luck"}', "answered 400: out of luck"),
        (500, b"\xff\xfe", "answered 500"),
    ],
)
def test_a_wrong_answer_over_http_is_one_sentence(
    server: Server, over_http: Client, status: int, body: bytes, sentence: str
) -> None:
    server.status, server.body = status, body
    with pytest.raises(RequestFailed, match=sentence):
        over_http.generate("x")


def test_a_model_without_a_chat_template_is_asked_without_chat(
    server: Server,
) -> None:
    with serving(server, ("m", {})) as endpoint:
        client = Client(Address(f"http://127.0.0.1:{endpoint.http_port}/v1"), "m", protocol="openai")
        with client, pytest.raises(RequestFailed) as caught:
            server.status, server.body = 400, b'{"error": {"message": "This model has no chat template."}}'
            client.chat([{"role": "user", "content": "What?"}])
    assert caught.value.hint == "leave out --chat"


def test_a_stream_over_http(server: Server, over_http: Client) -> None:
    long = "0123456789" * 100_000
    events = [json.dumps({"text_output": part}) for part in ("straße ", "東京", long)]
    server.body = "".join(f"data: {event}\n\n" for event in events).encode()
    assert "".join(over_http.stream("x")) == f"straße 東京{long}"
    server.body = server.body[:-1000]
    with pytest.raises(RequestFailed, match="broke off in the middle"):
        list(over_http.stream("x"))


@pytest.mark.parametrize("model", [TEXTS, IDS])
def test_no_answer_is_too_wrong(model: tuple[str, dict[str, str]]) -> None:
    """300 answers of random tensors: each is taken, or refused in one sentence, and none is waited for."""
    drawn = random.Random(5)
    server = Server()
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
    names = [
        "text_output",
        "output_ids",
        "sequence_length",
        "batch_index",
        "sequence_index",
        "output_log_probs",
    ]
    outputs = {}
    for name in drawn.sample(names, drawn.randint(0, 4)):
        shape = [drawn.choice([0, 1, 1, 1, 2, 3]) for _ in range(drawn.randint(0, 3))]
        datatype = drawn.choice(["BYTES", "BYTES", "INT32", "INT32", "FP32", "BOOL", "UINT64", "NOSUCH", ""])
        count = int(np.prod(shape)) + drawn.choice([0, 0, 0, 0, 1, -1])
        count = max(count, 0)
        raw = b"".join([serialized(b"ab")] * count) if datatype == "BYTES" else drawn.randbytes(4 * count)
        outputs[name] = (datatype, shape, raw)
    return response(drawn.random() < 0.6, **outputs)


def test_a_lost_server_is_asked_again_only_before_the_first_part(server: Server) -> None:
    with serving(server, TEXTS) as endpoint, Client(endpoint, retries=2) as client:
        server.stream = [grpc.StatusCode.UNAVAILABLE]
        with pytest.raises(ServerUnreachable):
            client.generate("x")
        assert server.calls == 3
        server.stream = [text(b"HALF"), grpc.StatusCode.UNAVAILABLE]
        with pytest.raises(RequestFailed, match="was lost after 1 responses"):
            client.generate("x")
        assert server.calls == 4
    with serving(server, TEXTS) as endpoint, Client(endpoint, protocol="http", retries=1) as client:
        server.status, server.body = 502, b'{"error":"the server was lost before it had answered: try again"}'
        with pytest.raises(ServerUnreachable, match="was lost before it had answered"):
            client.generate("x")
        server.status, server.body = 400, b'{"error":"no"}'
        with pytest.raises(RequestFailed):
            client.generate("x")
        assert server.calls == 7


@pytest.mark.parametrize(
    "last",
    [text(b"HELLO", final=True), service_pb2.ModelStreamInferResponse(error_message="no place left")],
    ids=["answered", "refused"],
)
def test_a_call_that_has_ended_is_closed_and_not_cancelled(server: Server, last: Any) -> None:
    """Triton 2.51 loses a call that is cancelled just as it ends, and waits 30 s for it when it stops."""
    server.stream, server.waits_for_end = [last], True
    with serving(server, TEXTS) as endpoint:
        with Client(endpoint) as client, suppress(RequestFailed):
            client.generate("hello", max_tokens=4)
        assert eventually(lambda: server.ends) == ["closed"]


def test_a_call_that_is_given_up_is_cancelled(server: Server) -> None:
    server.waits_for_end = True
    with serving(server, TEXTS) as endpoint:
        with Client(endpoint, timeout_s=2) as client, pytest.raises(AnswerTimedOut):
            client.generate("hello", max_tokens=4)
        assert eventually(lambda: server.ends) == ["cancelled"]
