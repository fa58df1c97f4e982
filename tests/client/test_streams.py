"""How the client ends its gRPC calls, as a server sees it."""

from __future__ import annotations

import json
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
from trtllm_hpc.client.sync_client import Client
from trtllm_hpc.errors import AnswerTimedOut, RequestFailed
from trtllm_hpc.runtime.records import Endpoint


class Configuration(BaseHTTPRequestHandler):
    """Answers every request with the configuration of a text model."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        names = ("text_input", "max_tokens", "bad_words", "stop_words")
        types = {"max_tokens": "TYPE_INT32"}
        inputs = [{"name": name, "data_type": types.get(name, "TYPE_STRING")} for name in names]
        self.wfile.write(json.dumps({"input": inputs, "max_batch_size": 8}).encode())

    def log_message(self, *_: object) -> None:
        pass


class Streams(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers each request of a stream, or none, and notes how the client ends the stream."""

    def __init__(self, reply: Any) -> None:
        self.reply = reply
        self.ends: list[str] = []

    def ModelStreamInfer(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        try:
            for _ in requests:
                if self.reply is not None:
                    yield self.reply
        except Exception:  # grpc raises a bare one when the client cancels
            if context.is_active():
                raise
        time.sleep(0.1)  # a cancellation may come close behind
        self.ends.append("closed" if context.is_active() else "cancelled")


def answer(text: str) -> Any:
    """The last response to a request."""
    tensor = service_pb2.ModelInferResponse.InferOutputTensor(
        name="text_output", datatype="BYTES", shape=[1, 1]
    )
    response = service_pb2.ModelInferResponse(outputs=[tensor])
    response.parameters["triton_final_response"].bool_param = True
    response.raw_output_contents.append(serialize_byte_tensor(np.array([text.encode()], dtype=object)).item())
    return service_pb2.ModelStreamInferResponse(infer_response=response)


def refusal(message: str) -> Any:
    return service_pb2.ModelStreamInferResponse(error_message=message)


@contextmanager
def serving(streams: Streams) -> Iterator[Endpoint]:
    http = ThreadingHTTPServer(("127.0.0.1", 0), Configuration)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    server = grpc.server(ThreadPoolExecutor(2))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(streams, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield Endpoint("1", "here", "127.0.0.1", http.server_port, port, 1, ["ensemble"], 0.0)
    finally:
        server.stop(None).wait()
        http.shutdown()
        http.server_close()


@pytest.mark.parametrize("reply", [answer("HELLO"), refusal("no place left")], ids=["answered", "refused"])
def test_a_call_that_has_ended_is_closed_and_not_cancelled(reply: Any) -> None:
    """Triton 2.51 loses a call that is cancelled just as it ends, and waits 30 s for it when it stops."""
    streams = Streams(reply)
    with serving(streams) as endpoint:
        with Client(endpoint) as client, suppress(RequestFailed):
            client.generate("hello", max_tokens=4)
        assert eventually(lambda: streams.ends) == ["closed"]


def test_a_call_that_is_given_up_is_cancelled() -> None:
    streams = Streams(None)
    with serving(streams) as endpoint:
        with Client(endpoint, timeout_s=2) as client, pytest.raises(AnswerTimedOut):
            client.generate("hello", max_tokens=4)
        assert eventually(lambda: streams.ends) == ["cancelled"]
