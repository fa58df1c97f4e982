"""Triton's two services with answers that a test chooses."""

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
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import serialize_byte_tensor

from trtllm_hpc.runtime.records import Endpoint


class FakeTriton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
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
def serving(server: FakeTriton, model: tuple[str, dict[str, str]]) -> Iterator[Endpoint]:
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
