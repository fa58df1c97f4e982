"""One HTTP/2 connection (RFC 9113) on which all requests have the same headers.

The load generator has its own implementation because general libraries need more CPU time than the measured
calls: see ``docs/explanation/load-generator-grpc.md``. Header compression comes from ``hpack``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Protocol

from hpack import Decoder, Encoder, HPACKError, NeverIndexedHeaderTuple

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
"""Frame types."""
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
_PADDED = 0x8
_PRIORITY = 0x20
_HEADER_TABLE_SIZE, _ENABLE_PUSH, _MAX_CONCURRENT_STREAMS = 1, 2, 3
_INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 4, 5
"""Setting identifiers."""
REFUSED_STREAM, CANCEL = 7, 8
"""Error codes."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_MAX_WINDOW = 2**31 - 1
_DEFAULT_WINDOW = 65_535
_DEFAULT_FRAME_SIZE = 16_384
_MAX_STREAM_ID = 2**31 - 1
_UNLIMITED_STREAMS = 2**31
"""Limit of open streams until the server sets one; higher than the number of stream IDs."""
_WINDOW_REFILL = 2**30
"""Received bytes after which the connection's window is enlarged again."""
_MAX_CACHED_BLOCKS = 1024
"""Most decoded header blocks in the cache; most responses have the same blocks."""

_FRAME_HEADER = Struct(">HBBBI")
_SETTING = Struct(">HI")

Frame = tuple[int, int, int, bytes]
"""Type, flags, stream id, payload."""
Headers = dict[str, str]


def encode_frame(kind: int, flags: int, stream_id: int, payload: bytes | memoryview = b"") -> bytes:
    """Return the bytes of one frame."""
    length = len(payload)
    return _FRAME_HEADER.pack(length >> 8, length & 0xFF, kind, flags, stream_id) + payload


def split_frames(buffer: bytes) -> tuple[list[Frame], bytes]:
    """Return the complete frames at the beginning of a buffer, and the rest of it."""
    frames: list[Frame] = []
    at, size = 0, len(buffer)
    while size - at >= 9:
        high, low, kind, flags, stream_id = _FRAME_HEADER.unpack_from(buffer, at)
        end = at + 9 + (high << 8) + low
        if end > size:
            break
        frames.append((kind, flags, stream_id & 0x7FFFFFFF, buffer[at + 9 : end]))
        at = end
    return frames, buffer[at:]


def strip_padding(kind: int, flags: int, payload: bytes) -> bytes:
    """Return the payload of DATA or HEADERS without padding and priority.

    Raises ConnectionError if the frame is shorter than its padding.
    """
    start, end = 0, len(payload)
    if flags & _PADDED:
        start, end = 1, end - (payload[0] if payload else 1)
    if kind == HEADERS and flags & _PRIORITY:
        start += 5
    if start > end:
        raise ConnectionError("the server sent a frame that is shorter than its padding")
    return payload[start:end]


def encode_settings(values: dict[int, int]) -> bytes:
    """Return a SETTINGS frame."""
    pairs = (_SETTING.pack(name, value) for name, value in values.items())
    return encode_frame(SETTINGS, 0, 0, b"".join(pairs))


def decode_settings(payload: bytes) -> dict[int, int]:
    """Return the values of a SETTINGS frame. Raises ConnectionError if its length is not a multiple of 6."""
    if len(payload) % _SETTING.size:
        raise ConnectionError("the server sent an incomplete setting")
    return dict(_SETTING.iter_unpack(payload))


def _uint31(payload: bytes) -> int:
    """Return the 31-bit number at the beginning of a payload: stream ID, window increment or error code."""
    return int.from_bytes(payload[:4], "big") & 0x7FFFFFFF


def _window_update(increment: int) -> bytes:
    return encode_frame(WINDOW_UPDATE, 0, 0, increment.to_bytes(4, "big"))


@dataclass(slots=True)
class _PendingBody:
    """The part of a request's body that waits for flow control."""

    data: memoryview
    """A view, because each frame would otherwise copy the rest of a large body."""
    window: int


class SendBuffer:
    """Outgoing frames in their order, subject to flow control (RFC 9113, section 5.2)."""

    def __init__(self) -> None:
        self.max_frame_size = _DEFAULT_FRAME_SIZE
        """The largest payload that the server accepts."""
        self._window = self._stream_window = _DEFAULT_WINDOW
        self._pending: dict[int, _PendingBody] = {}
        self._frames: list[bytes] = []

    def add(self, frame: bytes) -> None:
        """Queue a frame without flow control."""
        self._frames.append(frame)

    def add_request(self, stream_id: int, header_block: bytes, body: bytes) -> None:
        """Queue the headers of a new stream, and as much of its body as the windows allow."""
        size = len(body)
        head = encode_frame(HEADERS, END_HEADERS, stream_id, header_block)
        if self._pending or size > min(self._window, self._stream_window, self.max_frame_size):
            self._frames.append(head)
            self._pending[stream_id] = _PendingBody(memoryview(body), self._stream_window)
            self._send_pending()
        else:
            self._window -= size
            self._frames.append(head + encode_frame(DATA, END_STREAM, stream_id, body))

    def drop(self, stream_id: int) -> None:
        """Forget the rest of a stream's body."""
        self._pending.pop(stream_id, None)

    def widen(self, stream_id: int, increment: int) -> None:
        """Add to the window of a stream or, for stream 0, of the connection."""
        if stream_id == 0:
            self._window += increment
        elif stream_id in self._pending:
            self._pending[stream_id].window += increment
        self._send_pending()

    def set_stream_window(self, window: int) -> None:
        """Set the initial window of streams; windows of open streams change by the difference."""
        for body in self._pending.values():
            body.window += window - self._stream_window
        self._stream_window = window
        self._send_pending()

    def take(self) -> bytes:
        """Return all queued frames, and empty the queue."""
        data = b"".join(self._frames)
        self._frames.clear()
        return data

    def _send_pending(self) -> None:
        """Queue as much of the waiting bodies as the windows allow, in the order of requests."""
        for stream_id, body in list(self._pending.items()):
            while body.data:
                size = min(len(body.data), self._window, body.window, self.max_frame_size)
                if size <= 0:
                    break
                piece, body.data = body.data[:size], body.data[size:]
                self._window -= size
                body.window -= size
                self._frames.append(encode_frame(DATA, 0 if body.data else END_STREAM, stream_id, piece))
            if not body.data:
                del self._pending[stream_id]


class StreamHandler(Protocol):
    """Receives the events of one stream, with times of ``time.monotonic``."""

    def headers(self, headers: Headers, now: float) -> None:
        """The response has begun."""

    def data(self, data: bytes, now: float) -> None:
        """A piece of the response's body has arrived."""

    def end(self, trailers: Headers, now: float) -> None:
        """The response is complete."""

    def reset(self, code: int, now: float) -> None:
        """The server reset the stream."""

    def lost(self, reason: str, *, unprocessed: bool) -> None:
        """The connection is lost; ``unprocessed``: the server did not act on the request."""


class Connection(asyncio.Protocol):
    """The client's side of a connection.

    Args:
        headers: headers of every request.
        on_change: called when more streams may be possible, or when the connection has ended.
    """

    def __init__(self, headers: Sequence[tuple[str, str]], on_change: Callable[[], None]) -> None:
        self.ready = asyncio.get_running_loop().create_future()
        """Done when the server's settings have arrived."""
        self.usable = True
        """Whether new streams are allowed, up to the limit."""
        self._headers = list(headers)
        self._on_change = on_change
        self._encoder = Encoder()
        self._decoder = Decoder(max_header_list_size=2**20)
        # With a table of size 0 no header block refers to an earlier one, so decoded blocks can be cached.
        self._decoder.header_table_size = self._decoder.max_allowed_table_size = 0
        self._decoded: dict[bytes, Headers] = {}
        self._header_block: bytes | None = None
        self._last_block = b""
        self._streams: dict[int, StreamHandler] = {}
        self._next_id = 1
        self._max_streams = _UNLIMITED_STREAMS
        self._out = SendBuffer()
        self._received = 0
        self._rest = b""
        self._flush_scheduled = False
        self._unfinished: tuple[int, int, bytes] | None = None
        self._transport: asyncio.Transport | None = None

    @property
    def has_room(self) -> bool:
        """Whether one more stream can be opened now."""
        return self.usable and len(self._streams) < self._max_streams

    @property
    def busy(self) -> bool:
        """Whether any stream is open."""
        return bool(self._streams)

    def open(self, stream: StreamHandler, body: bytes, more: Mapping[str, str] | None = None) -> int:
        """Queue a request and return its stream id; :meth:`flush` or the event loop sends it soon."""
        stream_id = self._next_id
        self._next_id += 2
        if self._next_id > _MAX_STREAM_ID:
            self.usable = False
        self._streams[stream_id] = stream
        block = self._header_block
        if not block:  # cached once two successive blocks are equal, because then the table is stable
            block = self._encoder.encode(self._headers)
            if block == self._last_block:
                self._header_block = block
            self._last_block = block
        if more:  # never indexed, because that would change the table to which the cached block refers
            block += self._encoder.encode([NeverIndexedHeaderTuple(*pair) for pair in more.items()])
        self._out.add_request(stream_id, block, body)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)
        return stream_id

    def flush(self) -> None:
        """Write all queued frames in one call."""
        self._flush_scheduled = False
        data = self._out.take()
        if data and self._transport is not None:
            self._transport.write(data)

    def cancel(self, stream_id: int) -> None:
        """Reset a stream; its handler gets no more events."""
        if self._streams.pop(stream_id, None) is not None:
            self._out.drop(stream_id)
            self._out.add(encode_frame(RST_STREAM, 0, stream_id, CANCEL.to_bytes(4, "big")))
            self.flush()

    def close(self) -> None:
        """Close the connection at once."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the connection preface."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        values = {_HEADER_TABLE_SIZE: 0, _ENABLE_PUSH: 0, _INITIAL_WINDOW_SIZE: _MAX_WINDOW}
        transport.write(_PREFACE + encode_settings(values) + _window_update(_MAX_WINDOW - _DEFAULT_WINDOW))

    def data_received(self, data: bytes) -> None:
        """Handle each frame, then send the frames that this has queued."""
        try:
            self._receive(data)
        except ConnectionError as error:
            self._fail(str(error))
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        """Notify the handlers of all open streams."""
        self._fail(f"the connection was lost: {error}" if error else "the server closed the connection")

    def _receive(self, data: bytes) -> None:
        now = time.monotonic()
        self._flush_scheduled = True  # this method flushes at its end
        frames, self._rest = split_frames(self._rest + data if self._rest else data)
        for kind, flags, stream_id, payload in frames:
            if kind == DATA:
                self._received += len(payload)
                stream = self._streams.get(stream_id)
                if stream is not None:
                    stream.data(strip_padding(DATA, flags, payload) if flags & _PADDED else payload, now)
                if flags & END_STREAM:
                    self._end(stream_id, {}, now)
            elif kind == HEADERS and flags & END_HEADERS:
                self._receive_headers(stream_id, flags, strip_padding(HEADERS, flags, payload), now)
            else:
                self._receive_control(kind, flags, stream_id, payload, now)
        if self._received > _WINDOW_REFILL:
            self._out.add(_window_update(self._received))
            self._received = 0
        self.flush()

    def _fail(self, reason: str) -> None:
        self.usable = False
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(reason))
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.lost(reason, unprocessed=False)
        self._on_change()

    def _receive_headers(self, stream_id: int, flags: int, block: bytes, now: float) -> None:
        headers = self._decoded.get(block)
        if headers is None:
            try:
                headers = {str(name): str(value) for name, value in self._decoder.decode(block)}
            except (HPACKError, UnicodeDecodeError) as error:
                raise ConnectionError(f"the server's headers cannot be decoded: {error}") from error
            if len(self._decoded) < _MAX_CACHED_BLOCKS:
                self._decoded[block] = headers
        if flags & END_STREAM:
            self._end(stream_id, headers, now)
        elif stream_id in self._streams:
            self._streams[stream_id].headers(headers, now)

    def _end(self, stream_id: int, trailers: Headers, now: float) -> None:
        stream = self._streams.pop(stream_id, None)
        if stream is not None:
            self._out.drop(stream_id)
            stream.end(trailers, now)
            if self._max_streams < _UNLIMITED_STREAMS or not self.usable:
                self._on_change()

    def _receive_control(self, kind: int, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        if kind == WINDOW_UPDATE:
            self._out.widen(stream_id, _uint31(payload))
        elif kind == SETTINGS and not flags & ACK:
            self._receive_settings(decode_settings(payload))
        elif kind == PING and not flags & ACK:
            self._out.add(encode_frame(PING, ACK, 0, payload))
        elif kind == RST_STREAM:
            self._out.drop(stream_id)
            if (stream := self._streams.pop(stream_id, None)) is not None:
                stream.reset(_uint31(payload), now)
        elif kind == GOAWAY:
            self.usable = False
            last_id = _uint31(payload)  # later streams can be sent on another connection
            for unseen_id in [stream_id for stream_id in self._streams if stream_id > last_id]:
                self._out.drop(unseen_id)
                self._streams.pop(unseen_id).lost("the server is going away", unprocessed=True)
            self._on_change()
        elif kind == HEADERS:
            self._unfinished = (stream_id, flags, strip_padding(HEADERS, flags, payload))
        elif kind == CONTINUATION and self._unfinished is not None:
            first_id, first_flags, block = self._unfinished
            self._unfinished = (first_id, first_flags, block + payload)
            if flags & END_HEADERS:
                self._unfinished = None
                self._receive_headers(first_id, first_flags, block + payload, now)

    def _receive_settings(self, values: dict[int, int]) -> None:
        self._max_streams = values.get(_MAX_CONCURRENT_STREAMS, self._max_streams)
        self._out.max_frame_size = values.get(_MAX_FRAME_SIZE, self._out.max_frame_size)
        if _INITIAL_WINDOW_SIZE in values:
            self._out.set_stream_window(values[_INITIAL_WINDOW_SIZE])
        if _HEADER_TABLE_SIZE in values:
            self._encoder.header_table_size = min(4096, values[_HEADER_TABLE_SIZE])
            self._header_block = None
        self._out.add(encode_frame(SETTINGS, ACK, 0))
        if not self.ready.done():
            self.ready.set_result(None)
        self._on_change()
