"""The memory planner's figures against sums that anybody can follow."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tensorrt_llm.memory_models import (
    LLAMA_2_7B,
    LLAMA_3_8B,
    LLAMA_3_70B,
    MIXTRAL_8X7B,
    QWEN_05B,
)
from trtllm_hpc.backends import backend_of
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.tensorrt_llm.memory import MemoryModel, MemoryPlan, UnknownModel, plan_memory, read_shape
from trtllm_hpc.tensorrt_llm.releases.release import release_of_version

GIB = 2**30
FREE: dict[str, Any] = {"max_batch_size": None, "max_seq_len": None, "max_num_tokens": None}
"""No limits in the job file."""


def planned(
    config: dict[str, Any],
    *,
    version: str | None = "0.16.0",
    gpu: str | None = "a100-80gb",
    gpus: int = 8,
    kv_cache: dict[str, Any] | None = None,
    repository: dict[str, Any] | None = None,
    serve: dict[str, Any] | None = None,
    **engine: Any,
) -> MemoryPlan:
    """The plan for an engine of TensorRT-LLM in float16 with the seeds' usual limits."""
    if version is not None:
        limits = {"max_batch_size": 16, "max_seq_len": 4096, "max_num_tokens": 8192}
        engine = {"backend": "tensorrtllm", "dtype": "float16", **limits, **engine}
    job = JobFile.model_validate(
        {
            "name": "job",
            "model": {"path": "/models/m", "synthetic": None},
            "engine": engine,
            "kv_cache": kv_cache or {},
            "repository": repository or {},
            "serve": serve or {},
        }
    )
    cluster = ClusterProfile(name="here", gpus_per_node=gpus, gpu=gpu)
    release = None if version is None else release_of_version(version)
    return plan_memory(job, cluster, config, release, backend_of(job).memory or MemoryModel())


def near(value: float) -> Any:
    return pytest.approx(value, rel=0.05)


# By hand ----------------------------------------------------------------------------------------


def test_llama_2_7b() -> None:
    attention = 4 * 4096 * 4096  # q, k, v, o: 67.1 million
    mlp = 3 * 4096 * 11008  # gate, up, down: 135.3 million
    table = 32000 * 4096  # 131.1 million, as embedding and once more as head
    layers = 32 * (attention + mlp)
    parameters = layers + 2 * table  # 6,738 million
    plan = planned(LLAMA_2_7B)
    assert plan.parameters == near(parameters) and plan.parameters == near(6.74e9)
    assert plan.weights == near(2 * parameters) and plan.weights == near(12.55 * GIB)
    assert plan.kv_per_token == 32 * 2 * 4096 * 2 == 512 * 1024
    # On two ranks.
    each = layers / 2 + table + table / 2  # the head is cut, the embedding is whole on both ranks
    room = planned(LLAMA_2_7B, tensor_parallel=2)
    assert room.weights == near(2 * each)
    # NVIDIA's own log of this layout (docs/source/reference/memory.md): "Loaded engine size: 6695 MiB",
    # "Allocated 63.44 GiB for max tokens in paged KV cache (259840)".
    assert room.weights == near(6695 * 2**20)
    assert room.kv_per_token == near(63.44 * GIB / 259840)


def test_llama_3_70b() -> None:
    attention = 2 * 8192 * 8192 + 2 * 8192 * 1024
    layers = 80 * (attention + 3 * 8192 * 28672)  # 68,452 million
    table = 128256 * 8192  # 1,051 million
    plan = planned(LLAMA_3_70B, tensor_parallel=8)
    assert plan.parameters == near(layers + 2 * table) and plan.parameters == near(70.55e9)
    assert plan.weights == near(2 * (layers / 8 + table + table / 8))
    assert plan.kv_per_token == 80 * 2 * 1 * 128 * 2  # one of the 8 KV heads on each rank
    room = planned(LLAMA_3_70B, tensor_parallel=4, pipeline_parallel=2)
    # The first stage has the whole embedding, the second a quarter of the head: the first has more.
    assert room.weights == near(2 * (layers / 8 + table))
    assert room.kv_per_token == 40 * 2 * 2 * 128 * 2  # half the layers, two KV heads


@pytest.mark.parametrize("expert_parallel", [1, 2, 8])
def test_mixtral_8x7b(expert_parallel: int) -> None:
    attention = 2 * 4096 * 4096 + 2 * 4096 * 1024
    experts = 8 * 3 * 4096 * 14336  # 1,409 million in each layer
    router = 8 * 4096
    table = 32000 * 4096
    parameters = 32 * (attention + experts + router) + 2 * table
    one = planned(MIXTRAL_8X7B)
    assert one.parameters == near(parameters) and one.parameters == near(46.7e9)
    eight = planned(MIXTRAL_8X7B, tensor_parallel=8, moe_expert_parallel=expert_parallel)
    # However the experts are shared, a rank has an eighth of them; the router is whole, in float32.
    each = 32 * (2 * (attention + experts) / 8 + 4 * router) + 2 * (table + table / 8)
    assert eight.weights == near(each)
    assert eight.kv_per_token == 32 * 2 * 1 * 128 * 2


# Quantization ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "bytes_each"),
    [("fp8", 1), ("int8_wo", 1), ("int8_sq", 1), ("int4_wo", 0.5), ("int4_awq", 0.5 + 2 / 128)],
)
def test_quantization_leaves_embedding_and_head_alone(method: str, bytes_each: float) -> None:
    layers = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    tables = 2 * 128256 * 4096  # a fifth of the quantized 8B
    room = planned(LLAMA_3_8B, quantization={"method": method})
    assert room.weights == pytest.approx(layers * bytes_each + tables * 2, rel=0.01)
    assert room.kv_per_token == 128 * 1024  # the cache is a key of its own


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_a_kv_cache_of_eight_bits_holds_twice_as_much(kind: str) -> None:
    plain, small = planned(LLAMA_3_8B), planned(LLAMA_3_8B, quantization={"kv_cache": kind})
    assert small.kv_per_token * 2 == plain.kv_per_token
    twice = 2 * (plain.tokens or 0)
    assert twice and small.tokens in (twice, twice + 1)


# Room --------------------------------------------------------------------------------------------


def test_what_fits_on_the_gpu() -> None:
    plan = planned(LLAMA_3_8B)
    room = plan
    assert room.capacity == 80 * GIB and plan.fraction == 0.9
    left = 80 * GIB - room.weights - room.buffers
    assert room.tokens == int(left * 0.9 / (128 * 1024))
    assert 430_000 < room.tokens < 480_000  # about 0.9 * (80 - 15 - 1 to 2) GiB / 128 KiB
    assert room.requests == room.tokens // 4096
    assert plan.verdict == "ok"
    assert f"{room.tokens} tokens fit, {room.requests} requests of 4096" in plan.sentence


def test_a_batch_that_does_not_fit_is_warned_about() -> None:
    plan = planned(LLAMA_2_7B, gpu="a100-40gb", max_batch_size=100)
    # 100 * 4096 tokens of 512 KiB are 200 GiB.
    assert plan.verdict == "warn" and "but a batch has 100; the others wait" in plan.sentence
    requests = plan.requests
    assert requests is not None and 8 <= requests <= 12  # 0.9 * (40 - 12.6 - 2) GiB / 2 GiB
    assert plan.remedy is not None and f"lower engine.max_batch_size to {requests}" in plan.remedy
    # Four ranks would take 50 GiB of it each, more than they have; eight take 25.
    assert "set engine.tensor_parallel 8; or" in plan.remedy


def test_weights_that_do_not_fit() -> None:
    plan = planned(LLAMA_3_70B)
    assert plan.verdict == "fail" and "do not fit into 80.00 GiB a rank" in plan.sentence
    # Two ranks: 0.9 * (80 - 67 - 2) GiB for 16 requests of 4096 tokens, 160 KiB each: 10 GiB. It just fits.
    assert plan.remedy == "set engine.tensor_parallel 2; or quantize the model"
    assert planned(LLAMA_3_70B, tensor_parallel=2).verdict == "ok"
    assert planned(LLAMA_3_70B, tensor_parallel=2, max_batch_size=20).verdict == "warn"


def test_a_model_too_large_for_a_node_is_spread_over_several() -> None:
    plan = planned(LLAMA_3_70B, gpu="a100-40gb", gpus=4, tensor_parallel=4)
    # 34 of 40 GiB are weights, and 16 requests take 5 GiB on each of four ranks.
    assert plan.verdict == "warn" and plan.suggestion is not None
    assert (plan.suggestion.tensor, plan.suggestion.pipeline) == (4, 2)
    assert plan.remedy is not None and "engine.pipeline_parallel 2" in plan.remedy


def test_not_one_request_fits() -> None:
    plan = planned(LLAMA_3_8B, max_seq_len=8192, kv_cache={"max_tokens": 4096})
    assert plan.verdict == "fail" and "one request takes 8192" in plan.sentence
    assert plan.remedy is not None and "lower engine.max_seq_len" in plan.remedy


# Buffers -------------------------------------------------------------------------------------------
# An estimate: within a fifth of what people have logged.


def test_buffers_as_logged_for_a_small_model_with_a_large_batch() -> None:
    """NVIDIA/TensorRT-LLM issue 1188: 773.51 MiB, 2.66 GB and 5.76 GB with the defaults of 0.14."""
    plan = planned(QWEN_05B, quantization={"method": "int8_wo"}, **FREE)
    assert plan.activations == pytest.approx(773.51 * 2**20, rel=0.2)
    assert plan.logits == pytest.approx((2.66 + 5.76) * GIB, rel=0.2)


def test_activations_as_logged_for_a_long_step_with_all_logits() -> None:
    """NVIDIA/TensorRT-LLM issue 3636: 37812.51 MiB."""
    limits: dict[str, Any] = {"max_num_tokens": 128_000, "gather_context_logits": True, "max_batch_size": 1}
    plan = planned(LLAMA_3_8B, **limits)
    assert plan.activations == pytest.approx(37812.51 * 2**20, rel=0.2)


# The reference backend -----------------------------------------------------------------------------


def test_the_reference_backend_takes_no_more_cache_than_a_full_batch_can_use() -> None:
    plan = planned(LLAMA_2_7B, version=None, gpu=None, gpus=0, serve={"memory_gib_per_node": 64})
    assert plan.dtype == "float32" and plan.weights == near(4 * 6.74e9)
    assert plan.tokens == 8 * 512 and plan.kv_per_token == 1024 * 1024
    assert plan.capacity == 64 * GIB and plan.verdict == "ok"


# Models ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"model_type": "mamba"}, "no sum for models of type 'mamba'"),
        ({}, "no sum for models of type 'None'"),
        ({**LLAMA_2_7B, "hidden_size": None}, "its config.json has no 'hidden_size'"),
        ({**LLAMA_2_7B, "num_hidden_layers": "32"}, "num_hidden_layers in config.json is '32', and must"),
        ({**LLAMA_2_7B, "num_attention_heads": 0}, "num_attention_heads in config.json is 0, and must be a"),
    ],
)
def test_a_model_that_cannot_be_counted_is_told_in_a_sentence(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UnknownModel) as refused:
        read_shape(config)
    assert sentence in str(refused.value) and "\n" not in str(refused.value)
