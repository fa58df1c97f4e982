"""One record a request, as measured; every figure is computed from these alone."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from trtllm_hpc.paths import write_text

OK = "ok"


@dataclass(frozen=True)
class RequestRecord:
    """One request. Times are seconds on the client's monotonic clock since the run's start."""

    index: int
    scheduled_s: float
    """When it was due."""
    sent_s: float
    """When it was really sent."""
    ended_s: float
    """When its whole answer, or its error, was there."""
    status: str
    """``ok``, or the gRPC status code, e.g. ``DEADLINE_EXCEEDED``."""
    error: str | None = None
    """The server's own words."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    tokens_by: str | None = None
    """Who counted the output tokens; ``None`` if nobody did."""

    @property
    def ok(self) -> bool:
        """Whether a whole answer came."""
        return self.status == OK


def write_records(path: Path, records: Iterable[RequestRecord]) -> None:
    """Write the records as JSON lines."""
    write_text(path, "".join(json.dumps(asdict(record), ensure_ascii=False) + "\n" for record in records))


def read_records(path: Path) -> list[RequestRecord]:
    """Read what :func:`write_records` wrote."""
    with path.open(encoding="utf-8") as lines:
        return [RequestRecord(**json.loads(line)) for line in lines]
