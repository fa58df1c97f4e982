"""How much of a workload the passes of a measurement need, and what of it is measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trtllm_hpc.bench.load.loops import LoadResult
from trtllm_hpc.bench.load.messages import LoadReply, ParsedReply
from trtllm_hpc.bench.passes import (
    WHOLE_TRACE,
    closed_length,
    closed_window,
    open_length,
    open_schedule,
    timed_length,
)
from trtllm_hpc.bench.results import ClosedLoop, OpenLoop, Window, levels_of
from trtllm_hpc.bench.token_counts import to_records
from trtllm_hpc.bench.workload.build import make_workload
from trtllm_hpc.bench.workload.request import WorkloadRequest, WorkloadSpec
from trtllm_hpc.config.benchmark import Benchmark

from .make import IDLE


def of_a_trace(folder: Path, **settings: Any) -> Benchmark:
    """Settings for a trace of 40 requests, one every 0.1 s."""
    file = folder / "trace.jsonl"
    entries = ({"timestamp": 100 * place, "prompt": f"say {place}"} for place in range(40))
    file.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries), encoding="utf-8")
    plain = {"workload": {"kind": "trace", "path": str(file)}, **settings}
    return Benchmark.model_validate(Benchmark.with_defaults(plain))


def asked_of(settings: Benchmark) -> int:
    """Requests of a pass over the first level."""
    level = levels_of(settings)[0]
    if isinstance(level, OpenLoop):
        return open_length(level, settings)
    return closed_length(level, settings)[0] or 0


@pytest.mark.parametrize("arrival", ["trace", "constant"])
def test_a_trace_has_requests_for_the_warm_up_and_for_the_window(tmp_path: Path, arrival: str) -> None:
    settings = of_a_trace(tmp_path, requests=10, warmup_requests=5, arrival=arrival)
    requests = make_workload(WorkloadSpec(settings, asked_of(settings), takes_token_ids=False)).requests
    [level] = levels_of(settings)
    assert isinstance(level, OpenLoop)
    schedule = open_schedule(level, settings, requests=requests)
    warmup = sum(due_s < schedule.window.start_s for due_s in schedule.due_s)
    assert (warmup, len(schedule.due_s), len(requests)) == (5, 15, 15)


def test_a_trace_is_taken_whole_where_its_times_decide(tmp_path: Path) -> None:
    assert asked_of(of_a_trace(tmp_path)) == WHOLE_TRACE
    assert asked_of(of_a_trace(tmp_path, requests=None, duration_seconds=1)) == WHOLE_TRACE
    whole = of_a_trace(tmp_path, requests=10, warmup_requests=None, warmup_seconds=1)
    assert asked_of(whole) == WHOLE_TRACE
    assert asked_of(of_a_trace(tmp_path, concurrency=2)) == WHOLE_TRACE
    assert asked_of(of_a_trace(tmp_path, concurrency=8, requests=10, warmup_requests=2)) == 8 + 2 - 1 + 10


def test_a_timed_closed_loop_sends_all_given_prompts_before_it_repeats_one() -> None:
    """As far as a model that takes 50 ms for an answer comes; made prompts take long to make."""
    two = ClosedLoop(2)
    assert timed_length(two, 60.0, None) == 40
    assert timed_length(two, 60.0, 1000) == 1000
    assert timed_length(two, 60.0, 10**6) == 2400
    assert timed_length(two, 60.0, 8) == 40


def test_conversations_are_measured_from_the_end_of_one_until_a_slot_is_empty() -> None:
    ends = {"a": 2.0, "b": 3.0, "c": 5.0, "d": 6.0}
    replies = [
        LoadReply(0, end - first, end - first, end + 0.5 - first, session=session)
        for session, end in ends.items()
        for first in (1.0, 0.5)
    ]
    settings = Benchmark(requests=4, warmup_requests=1)
    assert closed_window(LoadResult(replies, IDLE, 0.0), settings, 2) == Window(2.0, 5.0)


def test_a_closed_loop_is_measured_while_every_process_has_requests() -> None:
    replies = [LoadReply(place, float(place), float(place), place + 1.0) for place in range(10)]
    window = closed_window(
        LoadResult(replies, IDLE, 0.0, saturated_until_s=6.0), Benchmark(requests=9, warmup_requests=1), 2
    )
    assert window == Window(1.0, 6.0)
    asked = [WorkloadRequest(4, prompt="x")] * 10
    records = to_records(replies, [ParsedReply()] * 10, asked, level=0, repeat=0, window=window)
    assert [record.phase for record in records] == ["warm-up", *["measured"] * 6, *["drain"] * 3]
