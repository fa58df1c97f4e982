"""Which requests of a workload were sent, after passes that did not send all of theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.bench.load.grpc_server import endpoint
from trtllm_hpc.bench.load.messages import Target
from trtllm_hpc.bench.passes import RequestFeed
from trtllm_hpc.bench.workload.request import WorkloadSpec
from trtllm_hpc.config.benchmark import Benchmark, Workload


def feed_of(**workload: Any) -> RequestFeed:
    """Ten requests."""
    spec = WorkloadSpec(Benchmark(workload=Workload(**workload)), 10, takes_token_ids=False)
    return RequestFeed(spec, Target(endpoint(1), "ensemble"))


def test_requests_that_a_pass_did_not_send_come_next() -> None:
    feed = feed_of(prompts=[f"say {index}" for index in range(10)])
    feed.take(5)
    feed.put_back(3)
    assert feed.sent == feed.built.requests[:3]
    assert feed.take(2).first_index == 3


def test_of_a_trace_the_requests_of_the_longest_pass_count_as_sent(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(f'{{"prompt": "say {index}", "due_s": {index}}}\n' for index in range(10)))
    feed = feed_of(kind="trace", path=str(file))
    feed.take(6)
    feed.put_back(6)
    feed.take(6)
    feed.put_back(2)
    assert len(feed.sent) == 6
