"""Frames and flow control of HTTP/2."""

from __future__ import annotations

import pytest

from trtllm_hpc.bench.load import frames
from trtllm_hpc.bench.load.frames import DATA, END_STREAM, HEADERS, content, frame, split
from trtllm_hpc.bench.load.outbox import Outbox


def test_frames_are_cut_out_wherever_the_network_has_cut() -> None:
    whole = (
        frame(DATA, END_STREAM, 2**31 - 1, b"x" * 70_000)
        + frame(HEADERS, 4, 3, b"")
        + frame(6, 0, 0, b"ping")
    )
    expected = [(DATA, 1, 2**31 - 1, b"x" * 70_000), (HEADERS, 4, 3, b""), (6, 0, 0, b"ping")]
    for cut in (0, 1, 8, 9, 10, 70_008, 70_009, 70_010, len(whole) - 1, len(whole)):
        first, rest = split(whole[:cut])
        second, left = split(rest + whole[cut:])
        assert first + second == expected and left == b""


def test_a_frame_is_laid_out_as_the_standard_says() -> None:
    """RFC 9113, section 4.1: length in 24 bits, type, flags, stream in 31 bits."""
    assert frame(8, 0, 5, b"\x00\x01\x00\x00") == bytes.fromhex("000004 08 00 00000005 00010000")
    assert split(bytes.fromhex("000000 04 01 80000000"))[0] == [(4, 1, 0, b"")]


@pytest.mark.parametrize(
    ("kind", "flags", "payload"),
    [
        (DATA, 0x0, b"body"),
        (DATA, 0x8, b"\x02body\0\0"),
        (HEADERS, 0x20, b"\0\0\0\x01\x10body"),
        (HEADERS, 0x28, b"\x03\0\0\0\x01\x10body\0\0\0"),
    ],
)
def test_padding_and_priority_are_no_content(kind: int, flags: int, payload: bytes) -> None:
    assert content(kind, flags, payload) == b"body"


@pytest.mark.parametrize(
    ("kind", "flags", "payload"), [(DATA, 0x8, b""), (DATA, 0x8, b"\x05body"), (HEADERS, 0x20, b"\0\0")]
)
def test_a_frame_shorter_than_its_padding_ends_the_connection(kind: int, flags: int, payload: bytes) -> None:
    with pytest.raises(ConnectionError):
        content(kind, flags, payload)


def test_half_a_setting_ends_the_connection() -> None:
    with pytest.raises(ConnectionError):
        frames.read_settings(b"\0\1\0\0")


def test_settings_there_and_back() -> None:
    [(kind, _, stream, payload)], _ = split(frames.settings({1: 0, 4: 2**31 - 1}))
    assert (kind, stream, frames.read_settings(payload)) == (frames.SETTINGS, 0, {1: 0, 4: 2**31 - 1})


def sent(outbox: Outbox) -> list[tuple[int, int, int, int]]:
    """Kind, flags, stream and length of what goes out."""
    return [(kind, flags, stream, len(payload)) for kind, flags, stream, payload in split(outbox.take())[0]]


def test_a_small_body_goes_out_with_its_headers() -> None:
    outbox = Outbox()
    outbox.request(1, b"block", b"body")
    assert sent(outbox) == [(HEADERS, 4, 1, 5), (DATA, END_STREAM, 1, 4)]
    assert outbox.take() == b""


def test_a_large_body_waits_for_the_servers_windows() -> None:
    outbox = Outbox()
    outbox.request(1, b"", b"a" * 100_000)
    outbox.request(3, b"", b"b")
    # 65,535 bytes in all, in frames of 16,384; the second request waits behind the first.
    first = [(HEADERS, 4, 1, 0), *[(DATA, 0, 1, 16_384)] * 3, (DATA, 0, 1, 16_383), (HEADERS, 4, 3, 0)]
    assert sent(outbox) == first
    outbox.widen(0, 1_000_000)  # the connection's window; the stream's is still closed
    assert sent(outbox) == [(DATA, END_STREAM, 3, 1)]
    outbox.widen(1, 10)
    assert sent(outbox) == [(DATA, 0, 1, 10)]
    outbox.set_stream_window(65_535 + 50_000)
    assert sent(outbox) == [(DATA, 0, 1, 16_384), (DATA, 0, 1, 16_384), (DATA, END_STREAM, 1, 1_687)]


def test_a_cancelled_body_is_sent_no_more() -> None:
    outbox = Outbox()
    outbox.request(1, b"", b"a" * 100_000)
    outbox.take()
    outbox.drop(1)
    outbox.widen(0, 1_000_000)
    outbox.widen(1, 1_000_000)
    assert outbox.take() == b""


def test_a_window_that_the_server_has_shrunk_below_nothing_holds() -> None:
    """RFC 9113, section 6.9.2: a change of the setting may make a window negative."""
    outbox = Outbox()
    outbox.request(1, b"", b"a" * 70_000)
    outbox.take()
    outbox.widen(0, 1_000_000)
    outbox.set_stream_window(100)
    outbox.widen(1, 65_435)  # back to nothing
    assert outbox.take() == b""
    outbox.widen(1, 4_465)
    assert sent(outbox) == [(DATA, END_STREAM, 1, 4_465)]
