"""Client of Triton's HTTP ``generate`` and ``generate_stream``, and of OpenAI's completions and chat.

Requests are bytes written to an open connection, and the callback of a read stamps its data: no task, stream
or parser delays the timestamp.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from ssl import MemoryBIO, SSLContext, SSLError, SSLWantReadError
from urllib.parse import urlsplit

import httptools

from trtllm_hpc.bench.load.messages import CHAT, LoadReply, Target, session_headers
from trtllm_hpc.bench.load.timing import Clock, StampBounds
from trtllm_hpc.errors import NotReady
from trtllm_hpc.wire import openai, triton
from trtllm_hpc.wire.response import error_message
from trtllm_hpc.wire.triton import generate_url

_CONNECT_TIMEOUT_S = 10.0
_PAUSE_S = 0.05
"""Delay before a request without a server fails; otherwise a closed loop would spin."""
_LOOK_S = 0.1
"""Seconds between searches for requests that have timed out."""
_TAIL_BYTES = 8192
"""Bytes at the end of a stream that show whether it is complete."""
_BUFFER = memoryview(bytearray(1 << 18))
"""Read buffer of all connections, because each read is handled before the next one begins."""
_MAX_RECORD = 1 << 14
"""Largest number of bytes in a TLS record (RFC 8446, 5.1)."""


class _Connection(asyncio.BufferedProtocol):
    """Carries one request at a time."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._transport: asyncio.Transport | None = None
        self._has_served = False
        self._now_s = 0.0
        self._is_whole = self._stays_open = False
        self._status = 0
        self._body = b""
        self.reply: LoadReply | None = None
        self.ready = asyncio.get_running_loop().create_future()
        """Ends when requests can be sent, or with the error of the TLS handshake."""

    def start(self, reply: LoadReply, request: bytes) -> None:
        """Send a request."""
        assert self._transport is not None
        self.reply, self._body, self._status, self._is_whole = reply, request, 0, False
        self._parser = httptools.HttpResponseParser(self)
        reply.sent_s = self._client.clock.now()
        self._write(request)

    def close(self) -> None:
        """Close the connection, whatever it carries."""
        self.reply = None
        if self._transport is not None:
            self._transport.abort()

    def fail(self, status: str, message: str) -> None:
        """End the request with an error, and close the connection."""
        reply, self.reply = self.reply, None
        self.close()
        if reply is not None:
            self._client.has_failed(reply, status, message)

    # Of asyncio ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._begin()

    def get_buffer(self, sizehint: int) -> memoryview:
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        bounds = self._client.bounds
        bounds.last_read = now = time.monotonic()
        bounds.reads += 1
        self._now_s = now - self._client.clock.zero
        self._take(_BUFFER[:nbytes])

    # Of the bytes in the socket: over TLS, they are encrypted -------------------------

    def _begin(self) -> None:
        self.ready.set_result(None)

    def _write(self, request: bytes) -> None:
        assert self._transport is not None
        self._transport.write(request)

    def _take(self, data: bytes | memoryview) -> None:
        if self.reply is None:  # data without a request
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.fail("UNAVAILABLE", f"the server's answer is not HTTP: {error}")
            return
        if self._is_whole:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.is_lost(self)
        reply = self.reply
        if reply is None:
            return
        if self._status and not self._stays_open and exc is None:  # a body that ends with its connection
            self._now_s = self._client.clock.now()
            self._end()
        elif self._has_served and not self._status:
            # Dial again: the server closed an idle connection before it saw the request (RFC 9112, 9.3.1).
            self.reply = None
            self._client.dial(reply, self._body)
        else:
            self.fail(
                "UNAVAILABLE",
                f"the connection was lost: {exc}" if exc else "the server closed the connection",
            )

    # Of httptools ---------------------------------------------------------------------

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        self._stays_open = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        assert self.reply is not None
        self.reply.chunks.append((self._now_s, body))

    def on_message_complete(self) -> None:
        self._is_whole = self._status >= 200

    def _end(self) -> None:
        reply, self.reply = self.reply, None
        assert reply is not None
        self._has_served = True
        if self._stays_open:
            self._client.is_idle(self)
        else:
            self.close()
        reply.free_s = self._now_s
        self._client.has_answer(reply, self._status)


class _TlsConnection(_Connection):
    """Carries one request at a time over TLS.

    asyncio's TLS adds almost twice as much CPU time per token, because it reads each record with two calls,
    the second of which raises.
    """

    def __init__(self, client: HttpClient, context: SSLContext, host: str) -> None:
        super().__init__(client)
        self._received, self._to_send = MemoryBIO(), MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_hostname=host)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(exc or ConnectionResetError("the server ended the TLS handshake"))
        super().connection_lost(exc)

    def _begin(self) -> None:
        try:
            self._tls.do_handshake()
            self.ready.set_result(None)
        except SSLWantReadError:
            pass
        except SSLError as error:
            self.ready.set_exception(error)
        self._flush()

    def _flush(self) -> None:
        if self._to_send.pending:
            super()._write(self._to_send.read())

    def _write(self, request: bytes) -> None:
        self._tls.write(request)
        self._flush()

    def _take(self, data: bytes | memoryview) -> None:
        self._received.write(data)
        if not self.ready.done():
            self._begin()
        while self.ready.done() and self._received.pending:
            try:
                text = self._tls.read(_MAX_RECORD)
            except SSLWantReadError:  # the rest of a record follows, or it was only a session ticket
                break
            except SSLError as error:
                self.fail("UNAVAILABLE", f"the TLS connection broke: {error}")
                return
            if not text:  # the server ended the connection
                assert self._transport is not None
                self._transport.close()
                return
            super()._take(text)
        self._flush()


class HttpClient:
    """Sends requests to one server, one at a time on each connection; connections are reused.

    ``on_end`` is called with each reply when it is complete or has failed.
    """

    def __init__(
        self, target: Target, clock: Clock, on_end: Callable[[LoadReply], None], bounds: StampBounds
    ) -> None:
        self.clock, self.bounds = clock, bounds
        self._target = target
        self._on_end = on_end
        self._connections: set[_Connection] = set()
        self._idle = deque[_Connection]()
        self._dials: set[asyncio.Task[None]] = set()
        self._look: asyncio.TimerHandle | None = None
        endpoint = target.endpoint
        if target.is_openai:
            path = openai.CHAT_PATH if target.protocol == CHAT else openai.COMPLETIONS_PATH
            url = urlsplit(f"{endpoint.openai_url}/{path}")
        else:
            url = urlsplit(generate_url(endpoint, target.model, stream=target.streaming))
        self._host, self._port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
        self._tls = endpoint.tls() if url.scheme == "https" else None
        headers = {"Host": url.netloc, "Content-Type": "application/json", **endpoint.authorization}
        lines = [f"POST {url.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        self._head = "\r\n".join(lines).encode()

    async def connect(self, at_once: int = 1) -> None:
        """Open ``at_once`` connections. Raises NotReady if the server cannot be reached."""
        endpoint = self._target.endpoint
        try:
            opened = asyncio.gather(*(self._open() for _ in range(at_once)))
            self._idle.extend(await asyncio.wait_for(opened, _CONNECT_TIMEOUT_S))
        except (OSError, asyncio.TimeoutError) as error:
            raise NotReady(
                f"No HTTP connection to {endpoint.place} (host {endpoint.host}) "
                f"within {_CONNECT_TIMEOUT_S:g} s: {error or 'it does not answer'}."
            ) from None
        self._look = asyncio.get_running_loop().call_later(_LOOK_S, self._look_for_late)

    def send(self, reply: LoadReply, payload: bytes) -> None:
        """Start a request."""
        headers = session_headers(reply.session)
        more = "".join(f"\r\n{name}: {value}" for name, value in headers.items()).encode()
        request = b"%b%b\r\nContent-Length: %d\r\n\r\n%b" % (self._head, more, len(payload), payload)
        if self._idle:
            self._idle.pop().start(reply, request)
        else:
            self.dial(reply, request)

    def flush(self) -> None:
        """Do nothing, because :meth:`send` does not queue requests."""

    async def close(self) -> None:
        """Close all connections, whatever is in flight."""
        if self._look is not None:
            self._look.cancel()
        for dial in self._dials:
            dial.cancel()
        for connection in self._connections:
            connection.close()
        await asyncio.gather(*self._dials, return_exceptions=True)
        await asyncio.sleep(0)  # for the transports to close their sockets

    # Of connections -----------------------------------------------------------------

    def dial(self, reply: LoadReply, request: bytes) -> None:
        """Open a connection for a request."""
        reply.sent_s = self.clock.now()
        task = asyncio.get_running_loop().create_task(self._dial(reply, request))
        self._dials.add(task)
        task.add_done_callback(self._dials.discard)

    def is_idle(self, connection: _Connection) -> None:
        """Take a connection back."""
        self._idle.append(connection)

    def is_lost(self, connection: _Connection) -> None:
        """Forget a connection."""
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def has_answer(self, reply: LoadReply, status: int) -> None:
        """Finish a reply with a complete HTTP response, which can be an error."""
        error = None
        # Not free_s, because the end of a chunked body may arrive later than the answer.
        reply.ended_s = reply.chunks[-1][0] if reply.chunks else reply.free_s
        if not self._target.streaming:
            reply.chunks[:] = [(reply.ended_s, b"".join(piece for _, piece in reply.chunks))]
        if status != 200:
            reply.status = f"HTTP {status}"
            reply.error = error_message(b"".join(piece for _, piece in reply.chunks)) or "no error message"
            reply.chunks.clear()
        elif not self._target.is_openai:
            error = triton.generate_error(_tail(reply))
        elif self._target.streaming:
            error = openai.stream_error(_tail(reply))
        if error is not None:
            reply.status, reply.error = "HTTP 200", error
        self._on_end(reply)

    def has_failed(self, reply: LoadReply, status: str, message: str) -> None:
        """Finish a reply without a complete answer, after a pause."""
        reply.status, reply.error = status, message
        reply.ended_s = reply.free_s = self.clock.now()
        asyncio.get_running_loop().call_later(_PAUSE_S, self._on_end, reply)

    async def _open(self) -> _Connection:
        tls, host = self._tls, self._host
        connection = _Connection(self) if tls is None else _TlsConnection(self, tls, host)
        await asyncio.get_running_loop().create_connection(lambda: connection, host, self._port)
        try:
            await connection.ready
        except BaseException:  # including the CancelledError of a timeout in wait_for
            connection.close()
            raise
        self._connections.add(connection)
        return connection

    async def _dial(self, reply: LoadReply, request: bytes) -> None:
        try:
            connection = await asyncio.wait_for(self._open(), self._target.timeout_s)
        except (OSError, SSLError, asyncio.TimeoutError) as error:
            place = f"{self._host}:{self._port}"
            self.has_failed(
                reply, "UNAVAILABLE", f"no connection to {place}: {error or 'it does not answer'}"
            )
        else:
            connection.start(reply, request)

    def _look_for_late(self) -> None:
        limit_s = self._target.timeout_s
        least_s = self.clock.now() - limit_s
        for connection in [*self._connections]:
            if connection.reply is not None and connection.reply.sent_s < least_s:
                connection.fail("DEADLINE_EXCEEDED", f"no whole answer in {limit_s:g} s")
        self._look = asyncio.get_running_loop().call_later(_LOOK_S, self._look_for_late)


def _tail(reply: LoadReply) -> bytes:
    """Return the end of an answer, because a search of the whole answer would delay other requests."""
    pieces, size = list[bytes](), 0
    for _, piece in reversed(reply.chunks):
        pieces.append(piece)
        size += len(piece)
        if size >= _TAIL_BYTES and b"\n\n" in piece:
            break
    return b"".join(reversed(pieces))
