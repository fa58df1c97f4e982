"""The records of single requests, from which every figure is computed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from trtllm_hpc.bench.results import Energy, Level, Window
from trtllm_hpc.runtime.records import known_fields

OK = "ok"
WARMUP = "warm-up"
MEASURED = "measured"
DRAIN = "drain"
NO_CONNECTION = ("no connection to ", "Cannot connect to host ")
"""How errors begin if nothing listens there; an overloaded server may answer UNAVAILABLE, too."""


@dataclass(frozen=True)
class RequestRecord:
    """One request.

    Times are seconds since the measurement's start on the client's monotonic clock, for
    all levels and repeats.
    """

    index: int
    """Index of the request in the workload. It is repeated in each pass of a trace, and when a closed loop
    that ends by time runs out of requests, which causes a warning."""
    level: int
    """Index of the level of load, from 0."""
    repeat: int
    """Index of the pass over that level, from 0."""
    phase: str
    """``warm-up``, ``measured`` or ``drain``, by when it was due. Only a closed loop with several processes
    sends in the drain, which begins when the first process has no more requests."""
    scheduled_s: float
    """When it was due; in a closed loop, when it was sent."""
    sent_s: float
    """When its bytes were handed to the connection."""
    ended_s: float
    """When the last token of its answer, or its error, had arrived; without streaming, the whole answer."""
    status: str
    """``ok``, or the error: a gRPC status code such as ``DEADLINE_EXCEEDED``, or ``HTTP 500``."""
    error: str | None = None
    """The server's message."""
    requested_tokens: int | None = None
    chunks_s: tuple[float, ...] = ()
    """When each response with output arrived; empty without streaming."""
    chunk_tokens: tuple[int, ...] = ()
    """Tokens of each response: by its ids, else one."""
    input_tokens: int | None = None
    input_by: str | None = None
    output_tokens: int | None = None
    output_by: str | None = None
    """Who counted the output tokens, see :mod:`trtllm_hpc.bench.token_counts`; ``None`` if nobody did."""
    session: str | None = None
    """The conversation that it is a turn of; ``None``: it stands alone."""
    turn: int | None = None
    """Which turn, from 1."""
    prompt_tokens: int | None = None
    """Length of the prompt in the workload; ``None``: not counted, or a turn of a conversation."""
    cached_tokens: int | None = None
    """Tokens of the prompt that the server found in its KV cache, if it says so."""
    reasoning_tokens: int | None = None
    """Output tokens that the model thought before it answered; ``None`` if no answer of the pass has any."""
    freed_s: float | None = None
    """In a closed loop: when the slot that it took became free. From then to ``sent_s`` is the client's own
    turnaround."""
    first_answer_s: float | None = None
    """When the first token after that came; ``None`` without streaming, or where there is no reasoning."""

    @property
    def ok(self) -> bool:
        """Whether a complete answer arrived."""
        return self.status == OK

    @property
    def measured(self) -> bool:
        """Whether it was due in the measured window."""
        return self.phase == MEASURED

    @property
    def first_token_s(self) -> float | None:
        """When the first output arrived; ``None`` without streaming."""
        return self.chunks_s[0] if self.chunks_s else None


class NoValue(Exception):
    """The records lack what the metric needs."""


@dataclass(frozen=True)
class Sample:
    """The requests of one pass over one level of load."""

    records: Sequence[RequestRecord]
    """All requests of the pass: those of the warm-up keep the server busy in the window, too."""
    window: Window
    level: Level
    is_good: Callable[[RequestRecord], bool] | None = None
    """Whether an answered request keeps every limit of the SLO; ``None`` where that is not known, see
    :meth:`trtllm_hpc.bench.analysis.slo.Slo.judge`. Needed for goodput."""
    energy: Energy | None = None
    """Of the GPUs in the window, if known."""

    @cached_property
    def measured(self) -> list[RequestRecord]:
        """The requests that were due in the window, including failed ones."""
        return [record for record in self.records if record.measured]

    @cached_property
    def answered(self) -> list[RequestRecord]:
        """The measured requests with a complete answer, however late."""
        return [record for record in self.measured if record.ok]

    def rate(self, events: float) -> float:
        """Return events per second of the window; raises NoValue if the window is empty."""
        if self.window.length_s <= 0:
            raise NoValue
        return events / self.window.length_s

    def within(self, moment_s: float) -> bool:
        """Return whether the moment lies in the window, its start excluded and its end included.

        The answer that opens the window belongs to the time before it: it made room for
        the first measured request.
        """
        return self.window.start_s < moment_s <= self.window.end_s


def append_records(path: Path, records: Iterable[RequestRecord]) -> None:
    """Append records as JSON lines with ``first_token_s``, and wait until they are on the disk."""
    plain = ({**vars(record), "first_token_s": record.first_token_s} for record in records)
    mode = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    with os.fdopen(os.open(path, mode, 0o600), "a", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(line, ensure_ascii=False)}\n" for line in plain)
        file.flush()
        os.fsync(file.fileno())


def read_records(path: Path) -> list[RequestRecord]:
    """Read what :func:`append_records` wrote, without a last line that was cut off by a kill."""
    records = []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                values = known_fields(RequestRecord, json.loads(line))
                for key in ("chunks_s", "chunk_tokens"):
                    values[key] = tuple(values.get(key, ()))
                records.append(RequestRecord(**values))
    return records
