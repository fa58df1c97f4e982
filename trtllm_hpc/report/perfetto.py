"""A measurement as a trace that https://ui.perfetto.dev and ``chrome://tracing`` open.

The format is Chrome's Trace Event Format: times in microseconds, ``X`` for a
span, ``C`` for a counter, ``M`` for names of tracks.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from trtllm_hpc.bench.records import RequestRecord
from trtllm_hpc.bench.server_metrics.sampling import ServerSample
from trtllm_hpc.paths import write_text

_REQUESTS, _SERVER, _CLIENT = 1, 2, 3
"""The groups of tracks, which the format calls processes."""

TraceEvent = dict[str, Any]


def write_perfetto(records: Sequence[RequestRecord], samples: Iterable[ServerSample], path: Path) -> None:
    """Write the requests, each in a slot of its own while it lasts, and the server's metrics as counters."""
    events = [*_names(), *_requests(records)]
    events += [_counter(_CLIENT, "requests outstanding", *moment) for moment in in_flight(records)]
    for sample in samples:
        events += [_counter(_SERVER, key, sample.time_s, value) for key, value in sample.values.items()]
    write_text(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":")))


def slots(records: Sequence[RequestRecord]) -> list[tuple[int, RequestRecord]]:
    """Each request with the lowest slot that is free from when it was due until it ends."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    placed = []
    for record in sorted(records, key=lambda one: (one.scheduled_s, one.ended_s)):
        while busy and busy[0][0] <= record.scheduled_s:
            heapq.heappush(free, heapq.heappop(busy)[1])
        slot = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (record.ended_s, slot))
        placed.append((slot, record))
    return placed


def _names() -> Iterator[TraceEvent]:
    for group, name in ((_REQUESTS, "requests"), (_CLIENT, "client"), (_SERVER, "server")):
        yield {"ph": "M", "pid": group, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": group, "name": "process_sort_index", "args": {"sort_index": group}}


def _requests(records: Sequence[RequestRecord]) -> Iterator[TraceEvent]:
    placed = slots(records)
    for slot in sorted({slot for slot, _ in placed}):
        args = {"name": f"slot {slot + 1}"}
        yield {"ph": "M", "pid": _REQUESTS, "tid": slot + 1, "name": "thread_name", "args": args}
    for slot, record in placed:
        yield from _request(slot + 1, record)


def _request(track: int, record: RequestRecord) -> Iterator[TraceEvent]:
    """The whole span, and within it the waits: for the client, for the first token, for the rest."""
    name = f"request {record.index}" if record.ok else f"request {record.index}: {record.status}"
    yield _span(track, name, record.scheduled_s, record.ended_s, _details(record))
    if record.sent_s > record.scheduled_s:
        yield _span(track, "waits to be sent", record.scheduled_s, record.sent_s)
    first = record.first_token_s
    if first is not None:
        yield _span(track, "to first token", record.sent_s, first)
        yield _span(track, "generates", first, record.ended_s)


def _details(record: RequestRecord) -> dict[str, Any]:
    found = {
        "isl": record.input_tokens,
        "osl": record.output_tokens,
        "status": record.status,
        "error": record.error,
        "phase": record.phase,
        "level": record.level,
        "pass": record.repeat + 1,
        "instance": record.instance,
    }
    return {key: value for key, value in found.items() if value is not None}


def _span(
    track: int, name: str, begin_s: float, end_s: float, args: dict[str, Any] | None = None
) -> TraceEvent:
    begin, end = _us(begin_s), _us(end_s)
    event = {"ph": "X", "pid": _REQUESTS, "tid": track, "name": name, "cat": "request"}
    return {**event, "ts": begin, "dur": end - begin, "args": args or {}}


def _counter(group: int, name: str, time_s: float, value: float) -> TraceEvent:
    return {"ph": "C", "pid": group, "name": name, "ts": _us(time_s), "args": {"value": value}}


def _us(seconds: float) -> int:
    """Whole microseconds, so that a span ends exactly where the next begins."""
    return round(seconds * 1e6)


def in_flight(records: Sequence[RequestRecord]) -> list[tuple[float, int]]:
    """Each moment at which the number changes, with the number from then on."""
    changes = sorted(
        [(record.sent_s, 1) for record in records] + [(record.ended_s, -1) for record in records]
    )
    steps: list[tuple[float, int]] = []
    count = 0
    for time_s, change in changes:
        count += change
        if steps and steps[-1][0] == time_s:
            steps[-1] = (time_s, count)
        else:
            steps.append((time_s, count))
    return steps


def most_in_flight(records: Sequence[RequestRecord], most: int) -> list[tuple[float, int]]:
    """The same thinned to about ``most`` moments: each stretch of time with its largest number."""
    steps = in_flight(records)
    if len(steps) <= most:
        return steps
    begin, end = steps[0][0], steps[-1][0]
    width = (end - begin) / most or 1.0
    largest: dict[int, tuple[float, int]] = {}
    for time_s, count in steps[:-1]:
        stretch = int((time_s - begin) / width)
        if stretch not in largest or count > largest[stretch][1]:
            largest[stretch] = (time_s, count)
    return [*largest.values(), steps[-1]]
