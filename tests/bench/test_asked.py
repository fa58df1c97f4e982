"""Which requests of a workload were asked, by what the passes leave over."""

from __future__ import annotations

from tests.bench.load.grpc_server import endpoint
from trtllm_hpc.bench.load import Target
from trtllm_hpc.bench.questions import Questions
from trtllm_hpc.bench.workload.build import Built
from trtllm_hpc.bench.workload.request import Request
from trtllm_hpc.config.benchmark import Benchmark, Workload


def questions(kind: str) -> Questions:
    settings = Benchmark(workload=Workload.model_validate({"kind": kind}))
    return Questions(settings, [Target(endpoint(1), "ensemble")], 10, workload)


def workload(count: int) -> Built:
    return Built([Request(prompt=f"say {place}", max_tokens=1) for place in range(count)])


def places(asked: Questions) -> list[str]:
    return [(request.prompt or "").removeprefix("say ") for request in asked.asked]


def test_what_a_pass_leaves_over_is_the_next_ones() -> None:
    asked = questions("prompts")
    asked.take(5)
    asked.put_back(3)
    assert places(asked) == ["0", "1", "2"]
    assert asked.take(2).first == 3


def test_a_trace_keeps_what_the_longest_pass_has_asked() -> None:
    asked = questions("trace")
    asked.take(6)
    asked.put_back(6)
    asked.take(6)
    asked.put_back(2)
    assert len(places(asked)) == 6
