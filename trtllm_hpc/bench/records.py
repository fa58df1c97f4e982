"""One record a request, as measured; every figure is computed from these alone."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from trtllm_hpc.paths import write_text

OK = "ok"
WARMUP = "warm-up"
MEASURED = "measured"
DRAIN = "drain"
NO_CONNECTION = ("no connection to ", "Cannot connect to host ")
"""How the errors of gRPC's and of HTTP's client begin where nobody listens. A server that lives and has too
much to do may say UNAVAILABLE, too."""


@dataclass(frozen=True)
class RequestRecord:
    """One request.

    Times are seconds since the measurement's start on the client's monotonic
    clock, one zero for all levels and repeats.
    """

    index: int
    """Place in the workload. Each pass asks requests of its own; only a trace comes again, and those of a
    closed loop that has asked all of its own before its time is over, of which a warning tells."""
    level: int
    """Which level of load, counted from 0 in their order."""
    repeat: int
    """Which pass over that level, counted from 0."""
    phase: str
    """``warm-up``, ``measured`` or ``drain``, by when it was due. Only a closed loop of several processes
    sends in the drain, which begins when the first of them has no more requests."""
    scheduled_s: float
    """When it was due. In a closed loop: when the slot that it took became free."""
    sent_s: float
    """When it was really sent."""
    ended_s: float
    """When its whole answer, or its error, was there."""
    status: str
    """``ok``, or what failed: the gRPC status code such as ``DEADLINE_EXCEEDED``, or ``HTTP 500``."""
    error: str | None = None
    """The server's own words."""
    requested_tokens: int | None = None
    """Output tokens asked for, at most."""
    chunks_s: tuple[float, ...] = ()
    """When each response of a stream came that brought output; empty where nothing was streamed."""
    chunk_tokens: tuple[int, ...] = ()
    """Output tokens of each of those."""
    chunks_by: str | None = None
    """Who counted the tokens of the chunks; see :mod:`trtllm_hpc.bench.token_counts`."""
    input_tokens: int | None = None
    input_by: str | None = None
    output_tokens: int | None = None
    output_by: str | None = None
    """Who counted the output tokens; ``None`` if nobody did."""
    instance: str | None = None
    """The server that answered, where that is known."""

    @property
    def ok(self) -> bool:
        """Whether a whole answer came."""
        return self.status == OK

    @property
    def measured(self) -> bool:
        """Whether it counts for the figures."""
        return self.phase == MEASURED

    @property
    def first_token_s(self) -> float | None:
        """When the first output came; ``None`` where that cannot be told from the end."""
        return self.chunks_s[0] if self.chunks_s else None


def write_records(path: Path, records: Iterable[RequestRecord]) -> None:
    """Write the records as JSON lines, each with ``first_token_s`` beside its fields."""
    write_text(path, _lines(records))


def append_records(path: Path, records: Iterable[RequestRecord]) -> None:
    """Write more records behind those that are there; they are on the disk when this returns."""
    mode = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    with os.fdopen(os.open(path, mode, 0o600), "a", encoding="utf-8") as file:
        file.write(_lines(records))
        file.flush()
        os.fsync(file.fileno())


def _lines(records: Iterable[RequestRecord]) -> str:
    plain = ({**asdict(record), "first_token_s": record.first_token_s} for record in records)
    return "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in plain)


def read_records(path: Path) -> list[RequestRecord]:
    """Read what :func:`write_records` wrote, but for a last line that was cut off with whoever wrote it."""
    known = {field.name for field in fields(RequestRecord)}
    with path.open(encoding="utf-8") as lines:
        return [_record(json.loads(line), known) for line in lines if line.endswith("\n")]


def _record(plain: dict[str, object], known: set[str]) -> RequestRecord:
    values = {key: value for key, value in plain.items() if key in known}
    for key in ("chunks_s", "chunk_tokens"):
        values[key] = tuple(values.get(key, ()))  # type: ignore[arg-type]
    return RequestRecord(**values)  # type: ignore[arg-type]
