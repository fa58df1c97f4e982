"""gRPC calls to a Triton server, thousands a second."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from trtllm_hpc.bench.load import frames
from trtllm_hpc.bench.load.clock import Clock
from trtllm_hpc.bench.load.connection import Connection, Headers
from trtllm_hpc.bench.load.deadlines import Deadlines
from trtllm_hpc.bench.load.grpc_protocol import call_headers, status_of
from trtllm_hpc.bench.load.replies import Reply
from trtllm_hpc.bench.load.target import Target
from trtllm_hpc.bench.records import OK
from trtllm_hpc.errors import NotReady

_CONNECT_TIMEOUT_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.001, 0.1
_ERROR_TAG = b"\x0a"
"""First byte of a ``ModelStreamInferResponse`` with an ``error_message`` (its field 1, a string)."""
_TOO_LATE = "DEADLINE_EXCEEDED"
_SAYS_NOTHING = ("", "deadline exceeded")
"""The words of a server that was told the deadline and keeps it; it does not say how long that was."""
_CODE_OF_RESET = {frames.CANCEL: "CANCELLED"}
"""The protocol's table "Errors"; all others mean INTERNAL."""

Ended = Callable[[Reply], None]


class _Call:
    """One call: the stream's events become a reply."""

    __slots__ = ("body", "buffer", "calls", "connection", "done", "http", "number", "refused", "reply")

    def __init__(self, calls: GrpcCalls, reply: Reply, body: bytes) -> None:
        self.calls = calls
        self.reply = reply
        self.body = body
        self.buffer = b""
        self.connection: Connection | None = None
        self.number = 0
        self.http = "200"
        self.done = False
        self.refused = 0

    def headers(self, headers: Headers, now: float) -> None:
        self.http = headers.get(":status", self.http)

    def data(self, data: bytes, now: float) -> None:
        """Cut the messages out: a byte that tells of compression, the length in four, the message."""
        if self.http != "200":
            return
        buffer = self.buffer + data if self.buffer else data
        while len(buffer) >= 5 and len(buffer) >= (end := 5 + int.from_bytes(buffer[1:5], "big")):
            self.reply.chunks.append((now - self.calls.zero, buffer[5:end]))
            buffer = buffer[end:]
        self.buffer = buffer

    def end(self, trailers: Headers, now: float) -> None:
        """Its status is in the trailers."""
        status, error = status_of(trailers, self.http)
        if status == _TOO_LATE and (error or "").lower() in _SAYS_NOTHING:
            error = self._too_late()
        self.finish(status, error, now)

    def _too_late(self) -> str:
        return f"no whole answer in {self.calls.target.timeout_s:g} s"

    def reset(self, code: int, now: float) -> None:
        if code == frames.REFUSED_STREAM:
            # Surely nothing was done for it (RFC 9113, 8.7). A server may refuse because it has not yet
            # put away the stream that it has just ended; the call's own deadline ends the trying.
            pause_s = min(_FIRST_RETRY_S * 2**self.refused, _LONGEST_RETRY_S)
            self.refused += 1
            self.connection = None
            asyncio.get_running_loop().call_later(pause_s, self.calls.place_again, self)
        else:
            name = _CODE_OF_RESET.get(code, "INTERNAL")
            self.finish(name, f"the server reset the stream, HTTP/2 error {code}", now)

    def lost(self, reason: str, *, unprocessed: bool) -> None:
        if unprocessed:
            self.calls.place(self)
        else:
            self.finish("UNAVAILABLE", reason, self.calls.clock.now() + self.calls.zero)

    def expire(self) -> None:
        """Its time is over."""
        if self.connection is not None:
            self.connection.cancel(self.number)
        now = self.calls.clock.now() + self.calls.zero
        self.finish(_TOO_LATE, self._too_late(), now)

    def finish(self, status: str, error: str | None, now: float) -> None:
        if self.done:
            return
        self.done = True
        reply = self.reply
        reply.ended_s = now - self.calls.zero
        reply.status, reply.error = status, error
        if self.calls.streams and reply.chunks and reply.chunks[-1][1][:1] == _ERROR_TAG:
            words = _stream_error(reply.chunks.pop()[1])
            reply.status, reply.error = "UNKNOWN" if status == OK else status, words
        self.calls.ended(reply)


class GrpcCalls:
    """Sends requests to one server, over as many connections as it asks for: one, as a rule.

    Args:
        ended: called with each reply when it is whole or has failed.
    """

    def __init__(self, target: Target, clock: Clock, ended: Ended) -> None:
        self.target = target
        self.clock = clock
        self.zero = clock.zero
        self.ended = ended
        self.streams = target.by_stream
        self._headers = call_headers(target)
        self._connections: list[Connection] = []
        self._waiting: deque[_Call] = deque()
        self._deadlines = Deadlines(target.timeout_s)
        self._connecting: asyncio.Task[None] | None = None
        self._pause_s = 0.0
        self._closed = False

    async def connect(self) -> None:
        """Connect for the first time.

        Raises:
            NotReady: no connection to the endpoint.
        """
        try:
            await self._open()
        except (OSError, asyncio.TimeoutError) as error:
            endpoint = self.target.endpoint
            raise NotReady(
                f"No gRPC connection to {endpoint.grpc} (host {endpoint.host}) "
                f"within {_CONNECT_TIMEOUT_S:g} s: {error or 'it does not answer'}."
            ) from None

    def send(self, reply: Reply, payload: bytes) -> None:
        """Queue a request; :meth:`flush` sends it."""
        call = _Call(self, reply, b"\0" + len(payload).to_bytes(4, "big") + payload)
        self._deadlines.add(call)
        self.place(call)

    def flush(self) -> None:
        """Send everything queued."""
        for connection in self._connections:
            connection.flush()

    async def close(self) -> None:
        """Hang up, whatever is in flight."""
        self._closed = True
        self._deadlines.close()
        if self._connecting is not None:
            self._connecting.cancel()
        for connection in self._connections:
            connection.close()
        await asyncio.sleep(0)

    def place(self, call: _Call) -> None:
        """Give a call to a connection with room, else let it wait for one."""
        for connection in self._connections:
            if connection.room:
                call.connection = connection
                call.number = connection.open(call, call.body)
                return
        call.connection = None
        self._waiting.append(call)
        self._connect_later()

    def place_again(self, call: _Call) -> None:
        """The same for a call that a server has refused, unless its time is over."""
        if not call.done and not self._closed:
            self.place(call)
            self.flush()

    def _changed(self) -> None:
        """A connection has room again, or is over."""
        for connection in [one for one in self._connections if not one.usable and not one.busy]:
            self._connections.remove(connection)
            connection.close()
        while self._waiting and any(connection.room for connection in self._connections):
            call = self._waiting.popleft()
            if not call.done:
                self.place(call)
        self.flush()
        if self._waiting:
            self._connect_later()

    def _connect_later(self) -> None:
        if self._connecting is None and not self._closed:
            self._connecting = asyncio.get_running_loop().create_task(self._connect_again())

    async def _connect_again(self) -> None:
        """One attempt, after a pause if the last one failed; whoever waits fails with it."""
        await asyncio.sleep(self._pause_s)
        try:
            await self._open()
            self._pause_s = 0.0
        except (OSError, asyncio.TimeoutError) as error:
            self._pause_s = min(max(_FIRST_PAUSE_S, 2 * self._pause_s), _LONGEST_PAUSE_S)
            waiting, self._waiting = self._waiting, deque()
            for call in waiting:
                reason = f"no connection to {self.target.endpoint.grpc}: {error or 'it does not answer'}"
                call.lost(reason, unprocessed=False)
        finally:
            self._connecting = None
        self._changed()

    async def _open(self) -> None:
        endpoint = self.target.endpoint
        loop = asyncio.get_running_loop()

        async def open_() -> Connection:
            _, connection = await loop.create_connection(
                lambda: Connection(self._headers, self._changed), endpoint.address, endpoint.grpc_port
            )
            try:
                await connection.ready
            except BaseException:
                # A time limit cancels, which is no Exception: then, too, the socket must not stay open.
                connection.close()
                raise
            return connection

        self._connections.append(await asyncio.wait_for(open_(), _CONNECT_TIMEOUT_S))


def _stream_error(message: bytes) -> str:
    from tritonclient.grpc import service_pb2

    return str(service_pb2.ModelStreamInferResponse.FromString(message).error_message)
