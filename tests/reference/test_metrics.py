from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from trtllm_hpc.bench.server_metrics.series import Page, since_start
from trtllm_hpc.reference.generation import Load
from trtllm_hpc.reference.metrics import gauges

from . import servers
from .clients import ask_one, metric, token_inputs, wait_until
from .servers import World

LOAD = Load(
    active=5,
    scheduled=3,
    context=1,
    waiting=2,
    max_requests=8,
    blocks_max=40,
    blocks_used=10,
    tokens_per_block=64,
    context_tokens=12,
    generation_requests=2,
    iteration=77,
)

LABELS = {
    "nv_trt_llm_request_metrics": {
        "request_type": {"active", "max", "scheduled", "context", "waiting"},
    },
    "nv_trt_llm_runtime_memory_metrics": {"memory_type": {"cpu", "gpu", "pinned"}},
    "nv_trt_llm_kv_cache_block_metrics": {
        "kv_cache_block_type": {"max", "free", "used", "tokens_per", "reused", "fraction"},
    },
    "nv_trt_llm_inflight_batcher_metrics": {
        "inflight_batcher_specific_metric": {
            "total_context_tokens",
            "generation_requests",
            "micro_batch_id",
            "paused_requests",
        },
    },
    "nv_trt_llm_general_metrics": {"general_type": {"timestamp", "iteration_counter"}},
    "nv_llm_input_token_len_count": {"response_metric_type": {"total_input_tokens"}},
    "nv_llm_output_token_len_count": {"response_metric_type": {"total_output_tokens"}},
}
"""Names, labels and their values of TensorRT-LLM's backend."""


def test_load_becomes_gauges() -> None:
    assert gauges(LOAD, {"cpu": 1}, now=2.5) == {
        "nv_trt_llm_request_metrics": {"active": 5, "max": 8, "scheduled": 3, "context": 1, "waiting": 2},
        "nv_trt_llm_runtime_memory_metrics": {"cpu": 1},
        "nv_trt_llm_kv_cache_block_metrics": {
            **{"max": 40, "free": 30, "used": 10, "tokens_per": 64, "reused": 0, "fraction": 0.25},
        },
        "nv_trt_llm_inflight_batcher_metrics": {
            **{"total_context_tokens": 12, "generation_requests": 2},
            **{"micro_batch_id": 0, "paused_requests": 0},
        },
        "nv_trt_llm_general_metrics": {"timestamp": 2_500_000, "iteration_counter": 77},
    }


@pytest.mark.triton
def test_metrics_have_upstreams_names_and_labels(alone: World) -> None:
    found: dict[str, dict[str, set[str]]] = {}
    for name, labels in re.findall(r"^(nv_(?:trt_)?llm_\w+)\{([^}]*)\}", alone.metrics(), re.MULTILINE):
        if name in LABELS:
            pairs = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            assert (pairs.pop("model"), pairs.pop("version")) == ("tensorrt_llm", "1")
            ((label, value),) = pairs.items()
            found.setdefault(name, {}).setdefault(label, set()).add(value)
    assert found == LABELS


T = TypeVar("T")


def settled(read: Callable[[], T]) -> T:
    """What is read once it stands still: the server counts an answer a moment after it is sent."""
    seen = [read()]

    def stands_still() -> bool:
        time.sleep(0.5)
        seen.append(read())
        return seen[-1] == seen[-2]

    wait_until(stands_still)
    return seen[-1]


@pytest.mark.triton
def test_the_benchmark_reads_them(alone: World) -> None:
    def found() -> dict[str, float]:
        return since_start(Page(alone.metrics()))

    tokens = settled(lambda: found().get("output_tokens", 0))
    ask_one(alone, "tensorrt_llm", token_inputs([1, 5, 6], 7))
    # The histograms count at once, the gauges from time to time.
    wait_until(lambda: found()["output_tokens"] > tokens and found()["iterations"] > 0)
    last = found()
    assert last["output_tokens"] == tokens + 7
    assert last["requests_max"] == 8 and 0 <= last["kv_used_share"] < 1
    assert last["finished[tensorrt_llm]"] >= 1 and last["duration_ms[tensorrt_llm]"] > 0
    assert last["iterations"] > 0


@pytest.mark.triton
def test_steps_are_counted_where_only_the_bls_model_is_asked(
    engines: dict[int, Path], tmp_path: Path
) -> None:
    with servers.serve(tmp_path, engines[1], decoupled=False) as world:
        assert world.generate({"text_input": "x", "max_tokens": 3}, "tensorrt_llm_bls")[0] == 200
        wait_until(lambda: metric(world, "nv_trt_llm_general_metrics", "iteration_counter") >= 1)
        count = r'^nv_llm_output_token_len_count\{.*"total_output_tokens".*\} (\S+)$'
        wait_until(lambda: re.findall(count, world.metrics(), re.MULTILINE) == ["1"])
