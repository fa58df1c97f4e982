"""What is to be sent on an HTTP/2 connection, and flow control (RFC 9113, section 5.2) over it."""

from __future__ import annotations

from trtllm_hpc.bench.load import frames
from trtllm_hpc.bench.load.frames import DATA, END_HEADERS, END_STREAM, HEADERS, frame


class _Body:
    """What flow control holds back of a request."""

    __slots__ = ("data", "window")

    def __init__(self, data: bytes, window: int) -> None:
        self.data = data
        self.window = window


class Outbox:
    """Frames in the order in which they go out."""

    def __init__(self) -> None:
        self.frame_size = 16_384
        """The server takes no larger frames."""
        self._window = self._stream_window = frames.FIRST_WINDOW
        self._held: dict[int, _Body] = {}
        self._out: list[bytes] = []

    def add(self, whole: bytes) -> None:
        """A frame that is no part of a body."""
        self._out.append(whole)

    def request(self, number: int, block: bytes, body: bytes) -> None:
        """Headers and body of a new stream; the body as far as the windows allow."""
        size = len(body)
        head = frame(HEADERS, END_HEADERS, number, block)
        if self._held or size > min(self._window, self._stream_window, self.frame_size):
            self._out.append(head)
            self._held[number] = _Body(body, self._stream_window)
            self.send_held()
        else:
            self._window -= size
            self._out.append(head + frame(DATA, END_STREAM, number, body))

    def drop(self, number: int) -> None:
        """Send no more of a body."""
        self._held.pop(number, None)

    def widen(self, number: int, more: int) -> None:
        """The server takes so many bytes more, of stream ``number`` or, with 0, in all."""
        if number == 0:
            self._window += more
        elif number in self._held:
            self._held[number].window += more
        self.send_held()

    def set_stream_window(self, window: int) -> None:
        """The server has set how much it takes of each stream at first; open ones change by as much."""
        for body in self._held.values():
            body.window += window - self._stream_window
        self._stream_window = window
        self.send_held()

    def take(self) -> bytes:
        """Everything to be sent now."""
        whole = b"".join(self._out)
        self._out.clear()
        return whole

    def send_held(self) -> None:
        """Of the bodies that are held back what the windows allow, in the order of their requests."""
        for number, body in list(self._held.items()):
            while body.data:
                size = min(len(body.data), self._window, body.window, self.frame_size)
                if size <= 0:
                    break
                piece, body.data = body.data[:size], body.data[size:]
                self._window -= size
                body.window -= size
                self._out.append(frame(DATA, 0 if body.data else END_STREAM, number, piece))
            if not body.data:
                del self._held[number]
