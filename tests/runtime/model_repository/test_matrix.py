"""Every repository key in every release: it arrives in the finished configuration, or it is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.model_repository.jobs import make_job, make_recipe
from tests.runtime.model_repository.test_releases import parameters, parsed
from tests.runtime.model_repository.upstream import write_all_models
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.engines.facts import EngineFacts
from trtllm_hpc.engines.template_values import KEYS
from trtllm_hpc.engines.triton_rules import repository_keys_exist
from trtllm_hpc.runtime.model_repository.writer import render_models
from trtllm_hpc.tensorrt_llm.releases.release import releases

HERE = ClusterProfile.model_validate({"name": "here"})
RELEASES = [release.version for release in releases()]

# Values that no default has: model, where it arrives, and as what.
VALUES: dict[str, tuple[Any, str, str, str]] = {
    "repository.decoupled": (True, "tensorrt_llm", "decoupled", "True"),
    "model.tokenizer": ("/t, o: k", "postprocessing", "tokenizer_dir", "/t, o: k"),
    "repository.add_special_tokens": (False, "preprocessing", "add_special_tokens", "false"),
    "repository.skip_special_tokens": (False, "postprocessing", "skip_special_tokens", "false"),
    "repository.accumulate_tokens": (True, "tensorrt_llm_bls", "accumulate_tokens", "true"),
    "repository.max_queue_delay_microseconds": (77, "tensorrt_llm", "max_queue_delay_microseconds", "77"),
    "repository.max_queue_size": (88, "tensorrt_llm", "max_queue_size", "88"),
    "kv_cache.enable_block_reuse": (True, "tensorrt_llm", "enable_kv_cache_reuse", "true"),
    "engine.enable_chunked_prefill": (True, "tensorrt_llm", "enable_chunked_context", "true"),
    "kv_cache.max_attention_window": (
        [99],
        "tensorrt_llm",
        "max_(attention_window_size|kv_cache_length)",
        "99",
    ),
    "repository.logits_datatype": ("TYPE_FP16", "tensorrt_llm", "context_logits", "10"),
    "repository.prompt_embedding_table_data_type": (
        "TYPE_BF16",
        "tensorrt_llm",
        "prompt_embedding_table",
        "14",
    ),
    "repository.batching_strategy": (
        "inflight_batching",
        "tensorrt_llm",
        "gpt_model_type",
        "inflight_batching",
    ),
    "engine.capacity_scheduler_policy": (
        "max_utilization",
        "tensorrt_llm",
        "batch_scheduler_policy",
        "max_utilization",
    ),
    "repository.enable_trt_overlap": (True, "tensorrt_llm", "enable_trt_overlap", "true"),
    "kv_cache.max_tokens": (2560, "tensorrt_llm", "max_tokens_in_paged_kv_cache", "2560"),
    "kv_cache.free_gpu_memory_fraction": (0.25, "tensorrt_llm", "kv_cache_free_gpu_mem_fraction", "0.25"),
    "kv_cache.host_cache_size": (10**10, "tensorrt_llm", "kv_cache_host_memory_bytes", "10000000000"),
    "kv_cache.sink_token_length": (4, "tensorrt_llm", "sink_token_length", "4"),
    "repository.gpu_device_ids": ([0, 2], "tensorrt_llm", "gpu_device_ids", "0,2"),
    "repository.decoding_mode": ("top_k", "tensorrt_llm", "decoding_mode", "top_k"),
    "repository.exclude_input_in_output": (True, "tensorrt_llm", "exclude_input_in_output", "true"),
}


def arrived(message: Any) -> dict[str, str]:
    """Everything that a key may set in a model, by name."""
    tensors = [*message.input, *message.output]
    batching = message.dynamic_batching
    return {
        **parameters(message),
        **{tensor.name: str(tensor.data_type) for tensor in tensors},
        "decoupled": str(message.model_transaction_policy.decoupled),
        "max_queue_delay_microseconds": str(batching.max_queue_delay_microseconds),
        "max_queue_size": str(batching.default_queue_policy.max_queue_size),
    }


def sections(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The sections of a job file with these values by key."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, name = key.split(".")
        found.setdefault(section, {})[name] = value
    return found


def test_every_key_has_a_value_to_try() -> None:
    assert set(VALUES) == set(KEYS)


@pytest.mark.parametrize("version", RELEASES)
def test_a_key_arrives_or_is_refused(tmp_path: Path, version: str) -> None:
    accepted = {}
    for key, (value, *_) in VALUES.items():
        found = list(
            repository_keys_exist(EngineFacts(make_job(version, **sections({key: value})), HERE, "exact"))
        )
        for problem in found:
            assert problem.field == key
            assert version in problem.message, problem.message
        if not found:
            accepted[key] = value
    recipe = make_recipe(version, **sections(accepted))
    models = parsed(render_models(recipe, write_all_models(tmp_path, version)))
    for key in accepted:
        _, model, name, text = VALUES[key]
        if model in models:
            texts = {text for place, text in arrived(models[model]).items() if re.fullmatch(name, place)}
            assert texts == {text}, key
    # A release without BLS has no place for what only BLS reads.
    assert "repository.accumulate_tokens" not in accepted or "tensorrt_llm_bls" in models


@pytest.mark.parametrize(
    ("decoupled", "instances", "ordered"), [(True, 4, True), (True, 1, False), (False, 4, False)]
)
def test_streams_keep_their_order_with_several_instances_of_postprocessing(
    tmp_path: Path, decoupled: bool, instances: int, ordered: bool
) -> None:
    """Upstream's own configuration does not see to it, in any release."""
    keys = {"decoupled": decoupled, "postprocessing_instances": instances}
    recipe = make_recipe("0.16.0", repository=keys)
    message = parsed(render_models(recipe, write_all_models(tmp_path, "0.16.0")))["postprocessing"]
    assert message.dynamic_batching.preserve_ordering == ordered
