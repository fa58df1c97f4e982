"""gRPC's own server in place of Triton: the bytes of a request are commands, see ``Behaviour``."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc  # type: ignore[import-untyped]

from trtllm_hpc.runtime.records import Endpoint

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


class Behaviour(grpc.GenericRpcHandler):  # type: ignore[misc]
    """``fail: message`` fails with it, ``late: message`` with another status; ``sleep S`` is answered after
    S seconds, ``never`` when nobody waits for it any more; ``size N`` is answered with N bytes; anything else
    is echoed, by a stream byte for byte."""

    def __init__(self) -> None:
        self.peers: set[str] = set()
        """The connections that requests have come over."""

    def service(self, details: Any) -> Any:
        if details.method == INFER:
            return grpc.unary_unary_rpc_method_handler(self._infer)
        if details.method == STREAM:
            return grpc.stream_stream_rpc_method_handler(self._stream)
        return None

    def _infer(self, request: bytes, context: Any) -> bytes:
        self.peers.add(context.peer())
        command, _, rest = request.partition(b" ")
        if command == b"fail:":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, rest.decode())
        if command == b"late:":
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, rest.decode())
        if command == b"sleep":
            time.sleep(float(rest))
        if command == b"never":
            over = threading.Event()
            context.add_callback(over.set)
            over.wait(60)
        return bytes(int(rest)) if command == b"size" else request

    def _stream(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        for request in requests:
            if request.startswith(b"fail: "):
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, request[6:].decode())
            for byte in request:
                yield bytes([byte])


@contextmanager
def grpc_server(port: int = 0, behaviour: Behaviour | None = None, **options: int) -> Iterator[Endpoint]:
    """A server in threads of this process; ``options`` are gRPC's, without their ``grpc.``."""
    server = grpc.server(
        ThreadPoolExecutor(8),
        [behaviour or Behaviour()],
        options=[(f"grpc.{key}", value) for key, value in options.items()],
    )
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield endpoint(bound)
    finally:
        server.stop(None).wait()


def endpoint(grpc_port: int) -> Endpoint:
    """An endpoint with this gRPC port; nothing else of it is used."""
    return Endpoint("1", "node01", "127.0.0.1", 1, grpc_port, 1, [], 0.0)
