"""gRPC client of a Triton server for thousands of calls per second.

How gRPC uses HTTP/2 is described in https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from trtllm_hpc.bench.load.http2 import CANCEL, REFUSED_STREAM, Connection, Headers
from trtllm_hpc.bench.load.messages import LoadReply, Target, session_headers
from trtllm_hpc.bench.load.timing import Clock
from trtllm_hpc.bench.records import OK
from trtllm_hpc.errors import NotReady

_CONNECT_TIMEOUT_S = 10.0
_MIN_RECONNECT_PAUSE_S, _MAX_RECONNECT_PAUSE_S = 0.05, 1.0
_MIN_RETRY_PAUSE_S, _MAX_RETRY_PAUSE_S = 0.001, 0.1
_SERVER_EXTRA_MS = 50
"""Milliseconds added to the timeout for the server, so that its rounded clock does not end a request before
the client does."""
_ERROR_TAG = b"\x0a"
"""First byte of a ``ModelStreamInferResponse`` with an ``error_message`` (its field 1, a string)."""
_TIMED_OUT = "DEADLINE_EXCEEDED"
_BARE_TIMEOUT_MESSAGES = ("", "deadline exceeded")
"""Messages of servers that enforce the deadline, which lack the timeout."""
_LOST = "the connection to the server was lost before it answered: try again"
_SERVICE = "/inference.GRPCInferenceService/"
_CODES = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
    *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE"),
    *("UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
)
"""Status codes by number: gRPC's statuscodes.md."""
_CODE_OF_HTTP = {
    "400": "INTERNAL",
    "401": "UNAUTHENTICATED",
    "403": "PERMISSION_DENIED",
    "404": "UNIMPLEMENTED",
    **dict.fromkeys(("429", "502", "503", "504"), "UNAVAILABLE"),
}
"""Status codes for HTTP errors of a proxy: gRPC's http-grpc-status-mapping.md."""
_CODE_OF_RESET = {CANCEL: "CANCELLED"}
"""Status codes for HTTP/2 error codes (table "Errors" of the protocol); all others mean INTERNAL."""


def call_headers(target: Target) -> list[tuple[str, str]]:
    """Return the headers of all calls to a target."""
    method = "ModelStreamInfer" if target.uses_stream_call else "ModelInfer"
    # Without "triton_grpc_error", which would add a status to a stream's error: with it, Triton 2.51 handles
    # a
    # cancellation that nobody requested, and sometimes ends with a segmentation fault.
    milliseconds = math.ceil(target.timeout_s * 1000) + _SERVER_EXTRA_MS
    # gRPC allows a number of at most eight digits, with a unit.
    timeout = f"{milliseconds}m" if milliseconds < 10**8 else f"{math.ceil(target.timeout_s) + 1}S"
    return [
        (":method", "POST"),
        (":scheme", target.endpoint.scheme),
        (":path", _SERVICE + method),
        (":authority", target.endpoint.grpc),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "trtllm-hpc"),
        ("grpc-timeout", timeout),
        *target.endpoint.authorization.items(),
    ]


def _status_of(trailers: Mapping[str, str], http_status: str) -> tuple[str, str | None]:
    code = trailers.get("grpc-status")
    if code == "0":
        return OK, None
    if code is None:
        http_status = trailers.get(":status", http_status)
        message = _LOST if http_status in ("200", "502") else f"HTTP {http_status}"
        return _CODE_OF_HTTP.get(http_status, "UNKNOWN"), message
    name = _CODES[int(code)] if code.isdecimal() and int(code) < len(_CODES) else "UNKNOWN"
    return name, unquote(trailers.get("grpc-message", "")) or None


@dataclass(slots=True, eq=False)
class _Call:
    """One call: handles the events of its stream and completes the reply."""

    client: GrpcClient
    reply: LoadReply
    body: bytes
    buffer: bytes = b""
    connection: Connection | None = None
    stream_id: int = 0
    http_status: str = "200"
    done: bool = False
    refusals: int = 0

    def headers(self, headers: Headers, now: float) -> None:
        self.http_status = headers.get(":status", self.http_status)

    def data(self, data: bytes, now: float) -> None:
        """Split the body into messages: a byte for compression, the length in four bytes, the content."""
        if self.http_status != "200":
            return
        buffer = self.buffer + data if self.buffer else data
        while len(buffer) >= 5 and len(buffer) >= (end := 5 + int.from_bytes(buffer[1:5], "big")):
            self.reply.chunks.append((now - self.client.zero, buffer[5:end]))
            buffer = buffer[end:]
        self.buffer = buffer

    def end(self, trailers: Headers, now: float) -> None:
        status, error = _status_of(trailers, self.http_status)
        if status == _TIMED_OUT and (error or "").lower() in _BARE_TIMEOUT_MESSAGES:
            error = self._timeout_message()
        self.finish(status, error, now)

    def reset(self, code: int, now: float) -> None:
        if code == REFUSED_STREAM:
            # The server did not act on the request (RFC 9113, 8.7), possibly because it still cleans up a
            # stream
            # that has just ended, so retry. The call's timeout ends the retries.
            pause_s = min(_MIN_RETRY_PAUSE_S * 2**self.refusals, _MAX_RETRY_PAUSE_S)
            self.refusals += 1
            self.connection = None
            asyncio.get_running_loop().call_later(pause_s, self.client.retry, self)
        else:
            status = _CODE_OF_RESET.get(code, "INTERNAL")
            # HAProxy 3.0 cancels the streams of a server that died; 2.6 ends them without a status.
            message = _LOST if code == CANCEL else f"the server reset the stream, HTTP/2 error {code}"
            self.finish(status, message, now)

    def lost(self, reason: str, *, unprocessed: bool) -> None:
        if unprocessed:
            self.client.assign(self)
        else:
            self.finish("UNAVAILABLE", reason, time.monotonic())

    def expire(self) -> None:
        if self.connection is not None:
            self.connection.cancel(self.stream_id)
        self.finish(_TIMED_OUT, self._timeout_message(), time.monotonic())

    def _timeout_message(self) -> str:
        return f"no whole answer in {self.client.target.timeout_s:g} s"

    def finish(self, status: str, error: str | None, now: float) -> None:
        if self.done:
            return
        self.done = True
        reply = self.reply
        reply.ended_s = now - self.client.zero
        reply.status, reply.error = status, error
        if self.client.streams and reply.chunks and reply.chunks[-1][1][:1] == _ERROR_TAG:
            from tritonclient.grpc import service_pb2

            response = service_pb2.ModelStreamInferResponse.FromString(reply.chunks.pop()[1])
            reply.error = str(response.error_message)
            reply.status = "UNKNOWN" if status == OK else status
        self.client.on_end(reply)


class _Timeouts:
    """One timer for all requests, of which the oldest expires first, because all have the same timeout."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._running: deque[tuple[float, _Call]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def start(self, call: _Call) -> None:
        running = self._running
        while running and running[0][1].done:
            running.popleft()
        running.append((self._loop.time() + self._timeout_s, call))
        if self._timer is None:
            self._timer = self._loop.call_at(running[0][0], self._expire)

    def close(self) -> None:
        self._running.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self) -> None:
        self._timer = None
        running = self._running
        while running and (running[0][1].done or running[0][0] <= self._loop.time()):
            call = running.popleft()[1]
            if not call.done:
                call.expire()
        if running:
            self._timer = self._loop.call_at(running[0][0], self._expire)


class GrpcClient:
    """Sends requests to one server, over as many connections as its stream limit requires, usually one.

    ``on_end`` is called with each reply when it is complete or has failed.
    """

    def __init__(self, target: Target, clock: Clock, on_end: Callable[[LoadReply], None]) -> None:
        self.target = target
        self.zero = clock.zero
        self.on_end = on_end
        self.streams = target.uses_stream_call
        self._headers = call_headers(target)
        self._connections: list[Connection] = []
        self._waiting: deque[_Call] = deque()
        self._timeouts = _Timeouts(target.timeout_s)
        self._connecting: asyncio.Task[None] | None = None
        self._pause_s = 0.0
        self._closed = False

    async def connect(self, at_once: int = 1) -> None:
        """Open the first connection. Raises NotReady if the endpoint cannot be reached."""
        try:
            await self._open()
        except (OSError, asyncio.TimeoutError) as error:
            endpoint = self.target.endpoint
            raise NotReady(
                f"No gRPC connection to {endpoint.grpc} (host {endpoint.host}) "
                f"within {_CONNECT_TIMEOUT_S:g} s: {error or 'it does not answer'}."
            ) from None

    def send(self, reply: LoadReply, payload: bytes) -> None:
        """Queue a request; :meth:`flush` sends it."""
        call = _Call(self, reply, b"\0" + len(payload).to_bytes(4, "big") + payload)
        self._timeouts.start(call)
        self.assign(call)

    def flush(self) -> None:
        """Send everything queued."""
        for connection in self._connections:
            connection.flush()

    async def close(self) -> None:
        """Close all connections, whatever is in flight."""
        self._closed = True
        self._timeouts.close()
        if self._connecting is not None:
            self._connecting.cancel()
        for connection in self._connections:
            connection.close()
        await asyncio.sleep(0)

    def assign(self, call: _Call) -> None:
        """Send a call on a connection with a free stream; without one, the call waits."""
        for connection in self._connections:
            if connection.has_room:
                call.connection = connection
                call.stream_id = connection.open(call, call.body, session_headers(call.reply.session))
                return
        call.connection = None
        self._waiting.append(call)
        self._start_connecting()

    def retry(self, call: _Call) -> None:
        """Repeat a call that the server refused, unless it has timed out."""
        if not call.done and not self._closed:
            self.assign(call)
            self.flush()

    def _on_connection_change(self) -> None:
        idle = [
            connection for connection in self._connections if not connection.usable and not connection.busy
        ]
        for connection in idle:
            self._connections.remove(connection)
            connection.close()
        while self._waiting and any(connection.has_room for connection in self._connections):
            call = self._waiting.popleft()
            if not call.done:
                self.assign(call)
        self.flush()
        if self._waiting:
            self._start_connecting()

    def _start_connecting(self) -> None:
        if self._connecting is None and not self._closed:
            self._connecting = asyncio.get_running_loop().create_task(self._reconnect())

    async def _reconnect(self) -> None:
        """Try once to connect, after a pause if the last attempt failed; waiting calls fail with it."""
        await asyncio.sleep(self._pause_s)
        try:
            await self._open()
            self._pause_s = 0.0
        except (OSError, asyncio.TimeoutError) as error:
            self._pause_s = min(max(_MIN_RECONNECT_PAUSE_S, 2 * self._pause_s), _MAX_RECONNECT_PAUSE_S)
            waiting, self._waiting = self._waiting, deque()
            for call in waiting:
                reason = f"no connection to {self.target.endpoint.grpc}: {error or 'it does not answer'}"
                call.lost(reason, unprocessed=False)
        finally:
            self._connecting = None
        self._on_connection_change()

    async def _open(self) -> None:
        endpoint = self.target.endpoint
        loop = asyncio.get_running_loop()

        async def connect() -> Connection:
            _, connection = await loop.create_connection(
                lambda: Connection(self._headers, self._on_connection_change),
                endpoint.address,
                endpoint.grpc_port,
                ssl=endpoint.tls("h2"),
            )
            try:
                await connection.ready
            except BaseException:  # including the CancelledError of a timeout in wait_for
                connection.close()
                raise
            return connection

        self._connections.append(await asyncio.wait_for(connect(), _CONNECT_TIMEOUT_S))
