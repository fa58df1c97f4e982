"""One HTTP/2 connection (RFC 9113) on which all requests have the same headers.

The load generator's own, because the general libraries cost more than what is
measured: see ``docs/load-generator-speed.md``. Header compression is the
library ``hpack``'s.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from trtllm_hpc.bench.load import frames
from trtllm_hpc.bench.load.frames import ACK, DATA, END_HEADERS, END_STREAM, HEADERS, frame
from trtllm_hpc.bench.load.outbox import Outbox

_LAST_STREAM = 2**31 - 1
_REPLENISH = 2**30
"""Received bytes after which the server is told that it may send more."""
_KNOWN_BLOCKS = 1024
"""Header blocks remembered as they were decoded; most answers have the same."""

Headers = dict[str, str]


class Stream(Protocol):
    """Who waits for what comes on a stream. Times are of ``time.monotonic``."""

    def headers(self, headers: Headers, now: float) -> None:
        """The response has begun."""

    def data(self, data: bytes, now: float) -> None:
        """A piece of its body."""

    def end(self, trailers: Headers, now: float) -> None:
        """The response is whole."""

    def reset(self, code: int, now: float) -> None:
        """The server gave it up."""

    def lost(self, reason: str, *, unprocessed: bool) -> None:
        """The connection is gone; ``unprocessed`` if the server has surely done nothing for it."""


class Connection(asyncio.Protocol):
    """The client's side.

    Args:
        headers: of every request.
        on_change: called when there may be room for more streams, or the connection is over.
    """

    def __init__(self, headers: Sequence[tuple[str, str]], on_change: Callable[[], None]) -> None:
        from hpack import Decoder, Encoder

        self.ready = asyncio.get_running_loop().create_future()
        """Done when the server has told its settings."""
        self.usable = True
        """Whether it takes new streams, if there is room."""
        self._headers = list(headers)
        self._on_change = on_change
        self._encoder = Encoder()
        self._decoder = Decoder(max_header_list_size=2**20)
        # With an empty table each block of headers says all by itself, so that decoding can be remembered.
        self._decoder.header_table_size = self._decoder.max_allowed_table_size = 0
        self._decoded: dict[bytes, Headers] = {}
        self._block: bytes | None = None
        self._last_block = b""
        self._streams: dict[int, Stream] = {}
        self._next = 1
        self._most = 2**31
        self._outbox = Outbox()
        self._received = 0
        self._rest = b""
        self._will_flush = False
        self._unfinished: tuple[int, int, bytes] | None = None
        self._transport: asyncio.Transport | None = None

    @property
    def room(self) -> bool:
        """Whether one more stream may be opened now."""
        return self.usable and len(self._streams) < self._most

    @property
    def busy(self) -> bool:
        """Whether any stream is open."""
        return bool(self._streams)

    def open(self, stream: Stream, body: bytes) -> int:
        """Queue a request, which :meth:`flush` or the event loop sends soon; returns the stream's number."""
        number = self._next
        self._next += 2
        if self._next > _LAST_STREAM:
            self.usable = False
        self._streams[number] = stream
        self._outbox.request(number, self._block or self._encode(), body)
        if not self._will_flush:
            self._will_flush = True
            asyncio.get_running_loop().call_soon(self.flush)
        return number

    def flush(self) -> None:
        """Hand everything queued to the kernel in one call."""
        self._will_flush = False
        whole = self._outbox.take()
        if whole and self._transport is not None:
            self._transport.write(whole)

    def cancel(self, number: int) -> None:
        """Tell the server to stop working on a stream, and hear no more of it."""
        if self._streams.pop(number, None) is not None:
            self._outbox.drop(number)
            self._outbox.add(frame(frames.RST_STREAM, 0, number, frames.CANCEL.to_bytes(4, "big")))
            self.flush()

    def close(self) -> None:
        """Hang up at once."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say hello."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        values = {
            frames.HEADER_TABLE_SIZE: 0,
            frames.ENABLE_PUSH: 0,
            frames.INITIAL_WINDOW_SIZE: frames.LARGEST_WINDOW,
        }
        more = frames.LARGEST_WINDOW - frames.FIRST_WINDOW
        transport.write(frames.PREFACE + frames.settings(values) + _more(more))

    def data_received(self, data: bytes) -> None:
        """Deal with each frame, then send what has been queued meanwhile."""
        try:
            self._take(data)
        except ConnectionError as error:
            self._fail(str(error))
            self.close()

    def _take(self, data: bytes) -> None:
        now = time.monotonic()
        self._will_flush = True
        received, self._rest = frames.split(self._rest + data if self._rest else data)
        for kind, flags, number, payload in received:
            if kind == DATA:
                self._received += len(payload)
                stream = self._streams.get(number)
                if stream is not None:
                    stream.data(frames.content(DATA, flags, payload) if flags > 1 else payload, now)
                if flags & END_STREAM:
                    self._end(number, {}, now)
            elif kind == HEADERS and flags & END_HEADERS:
                self._take_headers(number, flags, frames.content(HEADERS, flags, payload), now)
            else:
                self._take_control(kind, flags, number, payload, now)
        if self._received > _REPLENISH:
            self._outbox.add(_more(self._received))
            self._received = 0
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell everybody who still waits."""
        self._fail(f"the connection was lost: {error}" if error else "the server closed the connection")

    def _fail(self, reason: str) -> None:
        self.usable = False
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(reason))
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.lost(reason, unprocessed=False)
        self._on_change()

    def _encode(self) -> bytes:
        """The request's headers; the same bytes from the third request on, when both tables agree."""
        block: bytes = self._encoder.encode(self._headers)
        if block == self._last_block:
            self._block = block
        self._last_block = block
        return block

    def _take_headers(self, number: int, flags: int, block: bytes, now: float) -> None:
        headers = self._decoded.get(block)
        if headers is None:
            headers = self._decode(block)
            if len(self._decoded) < _KNOWN_BLOCKS:
                self._decoded[block] = headers
        if flags & END_STREAM:
            self._end(number, headers, now)
        elif number in self._streams:
            self._streams[number].headers(headers, now)

    def _decode(self, block: bytes) -> Headers:
        from hpack import HPACKError

        try:
            return {str(name): str(value) for name, value in self._decoder.decode(block)}
        except (HPACKError, UnicodeDecodeError) as error:
            raise ConnectionError(f"the server's headers cannot be read: {error}") from error

    def _end(self, number: int, trailers: Headers, now: float) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:
            self._outbox.drop(number)
            stream.end(trailers, now)
            if self._most < 2**31 or not self.usable:
                self._on_change()

    def _take_control(self, kind: int, flags: int, number: int, payload: bytes, now: float) -> None:
        if kind == frames.WINDOW_UPDATE:
            self._outbox.widen(number, frames.number(payload))
        elif kind == frames.SETTINGS and not flags & ACK:
            self._take_settings(frames.read_settings(payload))
        elif kind == frames.PING and not flags & ACK:
            self._outbox.add(frame(frames.PING, ACK, 0, payload))
        elif kind == frames.RST_STREAM:
            self._outbox.drop(number)
            if (stream := self._streams.pop(number, None)) is not None:
                stream.reset(frames.number(payload), now)
        elif kind == frames.GOAWAY:
            self._go_away(frames.number(payload))
        elif kind in (HEADERS, frames.CONTINUATION):
            self._take_piece(kind, flags, number, payload, now)

    def _take_piece(self, kind: int, flags: int, number: int, payload: bytes, now: float) -> None:
        """A part of headers that are too long for one frame."""
        if kind == HEADERS:
            self._unfinished = (number, flags, frames.content(HEADERS, flags, payload))
        elif self._unfinished is not None:
            number, first_flags, block = self._unfinished
            self._unfinished = (number, first_flags, block + payload)
            if flags & END_HEADERS:
                self._unfinished = None
                self._take_headers(number, first_flags, block + payload, now)

    def _take_settings(self, values: dict[int, int]) -> None:
        self._most = values.get(frames.MAX_CONCURRENT_STREAMS, self._most)
        self._outbox.frame_size = values.get(frames.MAX_FRAME_SIZE, self._outbox.frame_size)
        if frames.INITIAL_WINDOW_SIZE in values:
            self._outbox.set_stream_window(values[frames.INITIAL_WINDOW_SIZE])
        if frames.HEADER_TABLE_SIZE in values:
            self._encoder.header_table_size = min(4096, values[frames.HEADER_TABLE_SIZE])
            self._block = None
        self._outbox.add(frame(frames.SETTINGS, ACK, 0))
        if not self.ready.done():
            self.ready.set_result(None)
        self._on_change()

    def _go_away(self, last: int) -> None:
        """The server finishes streams up to ``last``; the others may be asked elsewhere."""
        self.usable = False
        for number in [number for number in self._streams if number > last]:
            self._outbox.drop(number)
            self._streams.pop(number).lost("the server is going away", unprocessed=True)
        self._on_change()


def _more(size: int) -> bytes:
    return frame(frames.WINDOW_UPDATE, 0, 0, size.to_bytes(4, "big"))
