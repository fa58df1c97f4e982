from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.report.make import make
from trtllm_hpc.bench.levels import ClosedLoop, OpenLoop
from trtllm_hpc.bench.records import RequestRecord
from trtllm_hpc.bench.server_metrics.sampling import ServerSample
from trtllm_hpc.report.perfetto import slots, write_perfetto

# Keys that each kind of event needs, from "Trace Event Format" (Google, 2016), with their types.
SCHEMA: dict[str, dict[str, type | tuple[type, ...]]] = {
    "M": {"pid": int, "name": str, "args": dict},
    "X": {"pid": int, "tid": int, "name": str, "cat": str, "ts": int, "dur": int, "args": dict},
    "C": {"pid": int, "name": str, "ts": int, "args": dict},
}


def events(path: Path, records: list[RequestRecord], samples: list[ServerSample]) -> list[dict[str, Any]]:
    write_perfetto(records, samples, path)
    trace = json.loads(path.read_text())
    assert set(trace) == {"traceEvents", "displayTimeUnit"}
    found: list[dict[str, Any]] = trace["traceEvents"]
    return found


def request(index: int, due: float, sent: float, end: float, first: float | None = None) -> RequestRecord:
    chunks = () if first is None else (first,)
    return RequestRecord(
        index, 0, 0, "measured", due, sent, end, "ok", chunks_s=chunks, input_tokens=5, output_tokens=7
    )


def test_every_event_is_as_the_format_asks(tmp_path: Path) -> None:
    made = make([OpenLoop(20.0), ClosedLoop(4)], failed_share=0.1)
    found = events(tmp_path / "trace.json", made.records, made.samples)
    for event in found:
        schema = SCHEMA[event["ph"]]
        assert set(event) - {"ph", "tid"} == set(schema) - {"tid"}
        assert all(isinstance(event[key], kind) for key, kind in schema.items()), event
        assert event.get("dur", 0) >= 0
    assert {event["ph"] for event in found} == {"M", "X", "C"}


def test_a_request_is_a_span_with_its_parts_within(tmp_path: Path) -> None:
    found = events(tmp_path / "t.json", [request(3, 1.0, 1.25, 3.0, first=2.0)], [])
    spans = {
        event["name"]: (event["ts"], event["ts"] + event["dur"]) for event in found if event["ph"] == "X"
    }
    assert spans == {
        "request 3": (1_000_000, 3_000_000),
        "waits to be sent": (1_000_000, 1_250_000),
        "to first token": (1_250_000, 2_000_000),
        "generates": (2_000_000, 3_000_000),
    }
    args = next(event["args"] for event in found if event["name"] == "request 3")
    assert (args["isl"], args["osl"], args["status"]) == (5, 7, "ok")


def test_requests_that_overlap_have_slots_of_their_own() -> None:
    records = [request(0, 0, 0, 4), request(1, 1, 1, 2), request(2, 2, 2, 5), request(3, 3, 3, 6)]
    assert [(slot, record.index) for slot, record in slots(records)] == [(0, 0), (1, 1), (1, 2), (2, 3)]


def test_no_two_requests_of_a_slot_overlap() -> None:
    placed = slots(make([OpenLoop(30.0)], requests=300).records)
    for slot in {slot for slot, _ in placed}:
        mine = [record for at, record in placed if at == slot]
        assert all(a.ended_s <= b.scheduled_s for a, b in pairwise(mine))


def test_the_servers_series_are_counters(tmp_path: Path) -> None:
    found = events(tmp_path / "t.json", [], [ServerSample(1.5, 0.0, {"kv_blocks_used": 12.0})])
    counters = [event for event in found if event["ph"] == "C"]
    assert [(event["name"], event["ts"], event["args"]) for event in counters] == [
        ("kv_blocks_used", 1_500_000, {"value": 12.0})
    ]


def test_the_client_counts_what_is_outstanding(tmp_path: Path) -> None:
    found = events(tmp_path / "t.json", [request(0, 0, 0, 2), request(1, 0, 1, 2)], [])
    counted = [(e["ts"], e["args"]["value"]) for e in found if e["name"] == "requests outstanding"]
    assert counted == [(0, 1), (1_000_000, 2), (2_000_000, 0)]
