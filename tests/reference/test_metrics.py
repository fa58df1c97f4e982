"""The metrics of the reference backend: TensorRT-LLM's names, and what the benchmark reads of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trtllm_hpc.bench.server_metrics import Page, since_start
from trtllm_hpc.reference.delivery import gauges
from trtllm_hpc.reference.generation import Load

from . import servers
from .clients import ask_one, metric, token_inputs, wait_idle, wait_until
from .servers import World

LOAD = Load(
    8, 40, 64, active=5, waiting=2, blocks_used=10, scheduled=3, context=1, context_tokens=12, iteration=77
)
EXPECTED: dict[str, dict[str, float]] = {
    "nv_trt_llm_request_metrics": {"active": 5, "max": 8, "scheduled": 3, "context": 1, "waiting": 2},
    "nv_trt_llm_runtime_memory_metrics": {"cpu": 1, "gpu": 0, "pinned": 0},
    "nv_trt_llm_kv_cache_block_metrics": {
        **{"max": 40, "free": 30, "used": 10, "tokens_per": 64, "reused": 0, "fraction": 0.25},
    },
    "nv_trt_llm_inflight_batcher_metrics": {
        **{"total_context_tokens": 12, "generation_requests": 0, "micro_batch_id": 0, "paused_requests": 0},
    },
    "nv_trt_llm_general_metrics": {"timestamp": 2_500_000, "iteration_counter": 77},
}
"""Names, labels and their values of TensorRT-LLM's backend."""


def test_load_becomes_gauges() -> None:
    assert gauges(LOAD, {"cpu": 1, "gpu": 0, "pinned": 0}, now=2.5) == EXPECTED


@pytest.mark.triton
def test_metrics_have_upstreams_names_and_the_benchmark_reads_them(alone: World) -> None:
    def found() -> dict[str, float]:
        return since_start(Page(alone.metrics()))

    ask_one(alone, "tensorrt_llm", token_inputs([1, 5, 6], 7))
    wait_idle(alone)
    for name, values in EXPECTED.items():
        labels = re.findall(
            rf'^{name}{{.*_type="(\w+)"|^{name}{{.*_metric="(\w+)"', alone.metrics(), re.MULTILINE
        )
        assert {one or other for one, other in labels} == set(values)
    tokens = found()["output_tokens"]
    ask_one(alone, "tensorrt_llm", token_inputs([1, 5, 6], 7))
    wait_until(lambda: found()["output_tokens"] == tokens + 7)
    last = found()
    assert last["requests_max"] == 8
    assert last["finished[tensorrt_llm]"] >= 1 and last["duration_ms[tensorrt_llm]"] > 0
    assert last["iterations"] > 0


@pytest.mark.triton
def test_steps_are_counted_where_only_the_bls_model_is_asked(
    engines: dict[int, Path], tmp_path: Path
) -> None:
    with servers.serve(tmp_path, engines[1], decoupled=False) as world:
        assert world.generate({"text_input": "x", "max_tokens": 3}, "tensorrt_llm_bls")[0] == 200
        wait_until(lambda: metric(world, "nv_trt_llm_general_metrics", "iteration_counter") >= 1)
