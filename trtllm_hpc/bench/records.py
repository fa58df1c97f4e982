"""Records of single requests, from which all figures are computed."""

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
"""Beginnings of errors if no server listens; UNAVAILABLE alone can also come from an overloaded server."""


@dataclass(frozen=True)
class RequestRecord:
    """One request.

    Times are seconds since the measurement's start on the client's monotonic clock, for all levels and
    repeats.
    """

    index: int
    """Index of the request in the workload. Indexes repeat in each pass of a trace, and (with a warning) when
    a closed loop that ends by time runs out of requests."""
    level: int
    """Index of the level of load, from 0."""
    repeat: int
    """Index of the pass over the level, from 0."""
    phase: str
    """``warm-up``, ``measured`` or ``drain``, by the due time. Only a closed loop with several processes
    sends in the drain, which begins when the first process has no more requests."""
    scheduled_s: float
    """Due time; in a closed loop, the time of sending."""
    sent_s: float
    """Time at which the connection got the request's bytes."""
    ended_s: float
    """Arrival of the answer's last token, or of the error; without streaming, of the whole answer."""
    status: str
    """``ok``, or the error: a gRPC status code such as ``DEADLINE_EXCEEDED``, or ``HTTP 500``."""
    error: str | None = None
    """Error message of the server or client."""
    requested_tokens: int | None = None
    """Most output tokens, as requested."""
    chunks_s: tuple[float, ...] = ()
    """Arrival of each response with output; empty without streaming."""
    chunk_tokens: tuple[int, ...] = ()
    """Tokens of each response: the number of its IDs, or 1 if it has no IDs."""
    input_tokens: int | None = None
    input_by: str | None = None
    """Who counted the input tokens."""
    output_tokens: int | None = None
    output_by: str | None = None
    """Who counted the output tokens, see :mod:`trtllm_hpc.bench.token_counts`; ``None`` if they are
    unknown."""
    session: str | None = None
    """Name of the request's conversation; ``None`` for a single request."""
    turn: int | None = None
    """Number of the turn in the conversation, from 1."""
    prompt_tokens: int | None = None
    """Length of the prompt in the workload; ``None`` if it is unknown, or for a turn of a conversation."""
    cached_tokens: int | None = None
    """Prompt tokens that the server found in its KV cache, if it reports them."""
    reasoning_tokens: int | None = None
    """Output tokens of reasoning before the answer; ``None`` if no answer of the pass has reasoning."""
    freed_s: float | None = None
    """In a closed loop: time at which the request's slot became free. The time from here to ``sent_s`` is the
    client's turnaround."""
    first_answer_s: float | None = None
    """Arrival of the first token after the reasoning; ``None`` without streaming or without reasoning."""

    @property
    def ok(self) -> bool:
        """Whether a complete answer arrived."""
        return self.status == OK

    @property
    def measured(self) -> bool:
        """Whether the request was due in the measured window."""
        return self.phase == MEASURED

    @property
    def first_token_s(self) -> float | None:
        """Arrival of the first output; ``None`` without streaming."""
        return self.chunks_s[0] if self.chunks_s else None


class NoValue(Exception):
    """The records lack what the metric needs."""


@dataclass(frozen=True)
class Sample:
    """The requests of one pass over one level of load."""

    records: Sequence[RequestRecord]
    """All requests of the pass, including the warm-up, whose requests can end in the window."""
    window: Window
    level: Level
    is_good: Callable[[RequestRecord], bool] | None = None
    """For goodput: returns whether an answered request meets every limit of the SLO. ``None`` if that is
    unknown, see :meth:`trtllm_hpc.bench.analysis.slo.Slo.judge`."""
    energy: Energy | None = None
    """Energy of the GPUs in the window; ``None`` if it is unknown."""

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
        """Return whether a moment is in the window, whose start is excluded and whose end is included.

        The start is excluded because the answer that opens the window of a closed loop belongs to the
        warm-up.
        """
        return self.window.start_s < moment_s <= self.window.end_s


def append_records(path: Path, records: Iterable[RequestRecord]) -> None:
    """Append records as JSON lines with ``first_token_s``, and sync them to disk."""
    plain = ({**vars(record), "first_token_s": record.first_token_s} for record in records)
    mode = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    with os.fdopen(os.open(path, mode, 0o600), "a", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(line, ensure_ascii=False)}\n" for line in plain)
        file.flush()
        os.fsync(file.fileno())


def read_records(path: Path) -> list[RequestRecord]:
    """Read records of :func:`append_records`; a last line that a kill cut off is skipped."""
    records = []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                values = known_fields(RequestRecord, json.loads(line))
                for key in ("chunks_s", "chunk_tokens"):
                    values[key] = tuple(values.get(key, ()))
                records.append(RequestRecord(**values))
    return records
