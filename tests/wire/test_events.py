"""Server-sent events in a stream that the network has cut anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from trtllm_hpc.wire import openai, triton
from trtllm_hpc.wire.events import Event, EventReader

STREAM = (
    b': a comment\r\ndata: {"a": 1}\r\n\r\n\r\ndata:{"b":\ndata: 2}\n\nevent: error\nid: 7\ndata: x\n\n'
    b"retry: 5\n\ndata: [DONE]"
)
EVENTS = [Event(b'{"a": 1}'), Event(b'{"b":\n2}'), Event(b"x", b"error")]
ENDS = [STREAM.index(b"1}") + 5, STREAM.index(b"2}") + 3, STREAM.index(b"x\n") + 2]


@pytest.mark.parametrize("cut", [1, 2, 7, 64, 10_000])
def test_an_event_is_found_as_soon_as_it_is_whole(cut: int) -> None:
    reader = EventReader()
    found = [(at, event) for at in range(0, len(STREAM), cut) for event in reader.add(STREAM[at : at + cut])]
    assert [event for _, event in found] == EVENTS
    assert [at for at, _ in found] == [end // cut * cut for end in ENDS]
    assert reader.end() == [Event(b"[DONE]")] and reader.end() == []


@pytest.mark.parametrize(
    ("stream_error", "content", "end"),
    [
        (openai.stream_error, b'data: {"choices": [{"text": "error"}]}\n\n', b"data: [DONE]\n\n"),
        (triton.generate_error, b'data: {"text_output": "error"}\n\n', b""),
    ],
)
def test_an_error_is_searched_at_the_end_of_a_stream_which_takes_no_time(
    stream_error: Callable[[bytes], str | None], content: bytes, end: bytes
) -> None:
    """Other requests are timed while one stream is searched."""
    long = content * 100_000
    begun_s = time.thread_time()
    assert stream_error(long + end) is None
    assert time.thread_time() - begun_s < 0.01
    message = "out of memory, " * 1000
    error = b'event: error\ndata: {"error": "%b"}\n\n' % message.encode()
    assert stream_error(long + error + end) == message


@pytest.mark.parametrize(
    ("pieces", "events"),
    [
        ([b"data: a\n\n", b"data: b\n\ndata: c\n\n"], [Event(b"a"), Event(b"b"), Event(b"c")]),
        ([b"data: a\ndata: b\n\n", b"data: c\r\n\r\n"], [Event(b"a\nb"), Event(b"c")]),
        ([b"event: error\n", b"data: a\n\n", b"data: b\n\n"], [Event(b"a", b"error"), Event(b"b")]),
        ([b"data: a", b"data: b\n\n", b"data: c\n\n"], [Event(b"adata: b"), Event(b"c")]),
        ([b"data: a\n", b"data: b\n\n", b"data: c\n\n"], [Event(b"a\nb"), Event(b"c")]),
        ([b"data: a\r\n\n", b"data: \n\n"], [Event(b"a"), Event(b"")]),
    ],
)
def test_a_piece_that_is_one_event_is_no_other_than_the_rest(
    pieces: list[bytes], events: list[Event]
) -> None:
    reader = EventReader()
    assert [event for piece in pieces for event in reader.add(piece)] == events
