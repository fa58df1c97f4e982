"""What came back: kept raw during the measurement, parsed after it."""

from __future__ import annotations

from dataclasses import dataclass, field

from trtllm_hpc.bench.load.target import Target
from trtllm_hpc.bench.records import OK
from trtllm_hpc.bench.summary import ClientUse


@dataclass(slots=True)
class Reply:
    """One request's fate. Times are seconds of the measurement's clock."""

    index: int
    """Place in the payloads."""
    due_s: float
    """When it was to be sent. In a closed loop: when the slot that it took became free."""
    sent_s: float
    """Right before the call was made."""
    ended_s: float
    """When the whole answer, or the error, was there."""
    status: str = OK
    """``ok``, or what failed: the gRPC status code such as ``DEADLINE_EXCEEDED``, or ``HTTP 500``."""
    error: str | None = None
    """The server's own words."""
    chunks: list[tuple[float, bytes]] = field(default_factory=list)
    """Each response with the time when it came, as bytes of the protocol; one unless streamed."""
    instance: str | None = None
    """The server that answered, where that is known."""

    @property
    def ok(self) -> bool:
        """Whether a whole answer came."""
        return self.status == OK


@dataclass(frozen=True)
class Load:
    """What one pass has brought."""

    replies: list[Reply]
    """In the order of sending; those cut off by an interrupt are missing."""
    client: ClientUse
    interrupted: bool = False
    """Whether Ctrl-C ended it early."""


@dataclass(frozen=True)
class Chunk:
    """One response that brought output."""

    time_s: float
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    """New ids, first sequence."""
    sequence_length: int | None = None
    """What the model itself says, first sequence; ``None`` if it does not."""


@dataclass(frozen=True)
class Parsed:
    """The answer to one request; nothing in it if there was none."""

    chunks: tuple[Chunk, ...] = ()
    """Without the empty response that ends a stream."""
    streamed: bool = False

    @property
    def text(self) -> str | None:
        """The whole text; ``None`` from a model without one."""
        texts = [chunk.text for chunk in self.chunks if chunk.text is not None]
        return "".join(texts) if texts else None

    @property
    def token_ids(self) -> tuple[int, ...] | None:
        """All ids in order, those of the prompt too where the model repeats it; ``None`` from a text model."""
        parts = [chunk.token_ids for chunk in self.chunks if chunk.token_ids is not None]
        return tuple(token for part in parts for token in part) if parts else None

    @property
    def sequence_length(self) -> int | None:
        """The last length that the model told; ``None`` if it told none."""
        lengths = [chunk.sequence_length for chunk in self.chunks if chunk.sequence_length is not None]
        return lengths[-1] if lengths else None


def parse(reply: Reply, target: Target) -> Parsed:
    """Read the raw responses of one request; what is no answer of the protocol is left out."""
    raise NotImplementedError
