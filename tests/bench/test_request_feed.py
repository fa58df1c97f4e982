"""Which requests of a workload were sent, after passes that did not send all of theirs."""

from __future__ import annotations

from tests.bench.load.grpc_server import endpoint
from trtllm_hpc.bench.load import Target
from trtllm_hpc.bench.request_feed import RequestFeed
from trtllm_hpc.bench.workload.request import BuiltWorkload, Request
from trtllm_hpc.config.benchmark import Benchmark, Workload


def feed_of(kind: str) -> RequestFeed:
    settings = Benchmark(workload=Workload.model_validate({"kind": kind}))
    return RequestFeed(settings, [Target(endpoint(1), "ensemble")], 10, workload)


def workload(count: int) -> BuiltWorkload:
    return BuiltWorkload([Request(prompt=f"say {index}", max_tokens=1) for index in range(count)])


def sent(feed: RequestFeed) -> list[str]:
    return [(request.prompt or "").removeprefix("say ") for request in feed.sent]


def test_requests_that_a_pass_did_not_send_come_next() -> None:
    feed = feed_of("prompts")
    feed.take(5)
    feed.put_back(3)
    assert sent(feed) == ["0", "1", "2"]
    assert feed.take(2).first_index == 3


def test_of_a_trace_the_requests_of_the_longest_pass_count_as_sent() -> None:
    feed = feed_of("trace")
    feed.take(6)
    feed.put_back(6)
    feed.take(6)
    feed.put_back(2)
    assert len(sent(feed)) == 6
