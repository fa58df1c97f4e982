"""Frames and flow control of HTTP/2."""

from __future__ import annotations

import pytest

from trtllm_hpc.bench.load.http2 import (
    DATA,
    END_STREAM,
    HEADERS,
    SendBuffer,
    encode_frame,
    split_frames,
    strip_padding,
)


def test_frames_are_split_wherever_the_network_has_split_the_data() -> None:
    whole = (
        encode_frame(DATA, END_STREAM, 2**31 - 1, b"x" * 70_000)
        + encode_frame(HEADERS, 4, 3, b"")
        + encode_frame(6, 0, 0, b"ping")
    )
    expected = [(DATA, 1, 2**31 - 1, b"x" * 70_000), (HEADERS, 4, 3, b""), (6, 0, 0, b"ping")]
    for cut in (0, 1, 8, 9, 10, 70_008, 70_009, 70_010, len(whole) - 1, len(whole)):
        first, rest = split_frames(whole[:cut])
        second, left = split_frames(rest + whole[cut:])
        assert first + second == expected and left == b""


def test_a_frame_has_the_layout_of_the_standard() -> None:
    """RFC 9113, section 4.1: length in 24 bits, type, flags, stream in 31 bits."""
    assert encode_frame(8, 0, 5, b"\x00\x01\x00\x00") == bytes.fromhex("000004 08 00 00000005 00010000")
    assert split_frames(bytes.fromhex("000000 04 01 80000000"))[0] == [(4, 1, 0, b"")]


@pytest.mark.parametrize(
    ("kind", "flags", "payload"),
    [
        (DATA, 0x0, b"body"),
        (DATA, 0x8, b"\x02body\0\0"),
        (HEADERS, 0x20, b"\0\0\0\x01\x10body"),
        (HEADERS, 0x28, b"\x03\0\0\0\x01\x10body\0\0\0"),
    ],
)
def test_padding_and_priority_are_stripped(kind: int, flags: int, payload: bytes) -> None:
    assert strip_padding(kind, flags, payload) == b"body"


def sent(out: SendBuffer) -> list[tuple[int, int, int, int]]:
    """Kind, flags, stream and length of all frames sent."""
    return [
        (kind, flags, stream, len(payload)) for kind, flags, stream, payload in split_frames(out.take())[0]
    ]


def test_a_small_body_is_sent_with_its_headers() -> None:
    out = SendBuffer()
    out.add_request(1, b"block", b"body")
    assert sent(out) == [(HEADERS, 4, 1, 5), (DATA, END_STREAM, 1, 4)]
    assert out.take() == b""


def test_a_large_body_waits_for_the_servers_windows() -> None:
    out = SendBuffer()
    out.add_request(1, b"", b"a" * 100_000)
    out.add_request(3, b"", b"b")
    # 65,535 bytes in all, in frames of 16,384; the second request waits behind the first.
    first = [(HEADERS, 4, 1, 0), *[(DATA, 0, 1, 16_384)] * 3, (DATA, 0, 1, 16_383), (HEADERS, 4, 3, 0)]
    assert sent(out) == first
    out.widen(0, 1_000_000)  # the connection's window; the stream's is still closed
    assert sent(out) == [(DATA, END_STREAM, 3, 1)]
    out.widen(1, 10)
    assert sent(out) == [(DATA, 0, 1, 10)]
    out.set_stream_window(65_535 + 50_000)
    assert sent(out) == [(DATA, 0, 1, 16_384), (DATA, 0, 1, 16_384), (DATA, END_STREAM, 1, 1_687)]


def test_a_cancelled_body_is_not_sent_any_further() -> None:
    out = SendBuffer()
    out.add_request(1, b"", b"a" * 100_000)
    out.take()
    out.drop(1)
    out.widen(0, 1_000_000)
    out.widen(1, 1_000_000)
    assert out.take() == b""


def test_a_window_that_the_server_has_made_negative_is_respected() -> None:
    """RFC 9113, section 6.9.2: a change of the setting may make a window negative."""
    out = SendBuffer()
    out.add_request(1, b"", b"a" * 70_000)
    out.take()
    out.widen(0, 1_000_000)
    out.set_stream_window(100)
    out.widen(1, 65_435)  # back to nothing
    assert out.take() == b""
    out.widen(1, 4_465)
    assert sent(out) == [(DATA, END_STREAM, 1, 4_465)]
