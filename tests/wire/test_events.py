"""Server-sent events in a stream that the network has cut anywhere."""

from __future__ import annotations

import pytest

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
