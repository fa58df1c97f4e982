"""Frames of HTTP/2 (RFC 9113), as far as gRPC calls need them."""

from __future__ import annotations

from struct import Struct

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
_PADDED = 0x8
_PRIORITY = 0x20

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 1, 2, 3, 4, 5
"""Names of settings."""
NO_ERROR, REFUSED_STREAM, CANCEL = 0, 7, 8
"""Codes of errors."""

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LARGEST_WINDOW = 2**31 - 1
FIRST_WINDOW = 65_535
"""Flow-control window of a connection before anybody says otherwise."""

_HEAD = Struct(">HBBBI")
_SETTING = Struct(">HI")

Frame = tuple[int, int, int, bytes]
"""Kind, flags, stream, payload."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    length = len(payload)
    return _HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream) + payload


def split(buffer: bytes) -> tuple[list[Frame], bytes]:
    """The whole frames at the beginning of a buffer, and what is left of it."""
    frames: list[Frame] = []
    at, size = 0, len(buffer)
    while size - at >= 9:
        high, low, kind, flags, stream = _HEAD.unpack_from(buffer, at)
        end = at + 9 + (high << 8) + low
        if end > size:
            break
        frames.append((kind, flags, stream & 0x7FFFFFFF, buffer[at + 9 : end]))
        at = end
    return frames, buffer[at:]


def content(kind: int, flags: int, payload: bytes) -> bytes:
    """The payload of DATA or HEADERS without padding and priority.

    Raises:
        ConnectionError: it is too short.
    """
    start, end = 0, len(payload)
    if flags & _PADDED:
        start, end = 1, end - (payload[0] if payload else 1)
    if kind == HEADERS and flags & _PRIORITY:
        start += 5
    if start > end:
        raise ConnectionError("the server sent a frame that is shorter than its padding")
    return payload[start:end]


def settings(values: dict[int, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(name, value) for name, value in values.items()))


def read_settings(payload: bytes) -> dict[int, int]:
    """What a SETTINGS frame says.

    Raises:
        ConnectionError: its length is none of whole settings.
    """
    if len(payload) % _SETTING.size:
        raise ConnectionError("the server sent half a setting")
    return dict(_SETTING.iter_unpack(payload))


def number(payload: bytes, at: int = 0) -> int:
    """The 31-bit number at an offset: a stream, a window, an error."""
    return int.from_bytes(payload[at : at + 4], "big") & 0x7FFFFFFF
