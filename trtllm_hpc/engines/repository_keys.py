"""Which placeholders of upstream's templates each key of the job file fills."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from trtllm_hpc.config.job import JobFile
from trtllm_hpc.tensorrt_llm.releases.placeholders import Placeholder, settable_placeholders
from trtllm_hpc.tensorrt_llm.releases.release import Release

GROUPS: Mapping[str, str] = {
    "ensemble": "inflight_batcher_llm",
    "preprocessing": "inflight_batcher_llm",
    "tensorrt_llm": "inflight_batcher_llm",
    "postprocessing": "inflight_batcher_llm",
    "tensorrt_llm_bls": "inflight_batcher_llm",
    "disaggregated_serving_bls": "disaggregated_serving",
}
"""Models of a repository and the group of their templates."""


def _in(placeholder: str, *models: str) -> tuple[tuple[str, str], ...]:
    return tuple((model, placeholder) for model in models)


KEYS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "repository.decoupled": _in(
        "decoupled_mode", "tensorrt_llm", "tensorrt_llm_bls", "disaggregated_serving_bls"
    ),
    "model.tokenizer": _in("tokenizer_dir", "preprocessing", "postprocessing"),
    "repository.tokenizer_type": _in("tokenizer_type", "preprocessing", "postprocessing"),
    "repository.add_special_tokens": _in("add_special_tokens", "preprocessing"),
    "repository.skip_special_tokens": _in("skip_special_tokens", "postprocessing"),
    "repository.accumulate_tokens": _in("accumulate_tokens", "tensorrt_llm_bls"),
    "repository.max_queue_delay_microseconds": _in(
        "max_queue_delay_microseconds", "tensorrt_llm", "preprocessing"
    ),
    "repository.max_queue_size": _in("max_queue_size", "tensorrt_llm", "preprocessing"),
    "kv_cache.enable_block_reuse": _in("enable_kv_cache_reuse", "tensorrt_llm"),
    "engine.enable_chunked_prefill": _in("enable_chunked_context", "tensorrt_llm"),
    # 0.6 has the window under another name.
    "kv_cache.max_attention_window": (
        ("tensorrt_llm", "max_attention_window_size"),
        ("tensorrt_llm", "max_kv_cache_length"),
    ),
    "repository.logits_datatype": _in(
        "logits_datatype", "tensorrt_llm", "ensemble", "tensorrt_llm_bls", "disaggregated_serving_bls"
    ),
    "repository.prompt_embedding_table_data_type": _in(
        "prompt_embedding_table_data_type", "tensorrt_llm", "tensorrt_llm_bls"
    ),
    "engine.capacity_scheduler_policy": _in("batch_scheduler_policy", "tensorrt_llm"),
    "kv_cache.max_tokens": _in("max_tokens_in_paged_kv_cache", "tensorrt_llm"),
    "kv_cache.free_gpu_memory_fraction": _in("kv_cache_free_gpu_mem_fraction", "tensorrt_llm"),
    "kv_cache.host_cache_size": _in("kv_cache_host_memory_bytes", "tensorrt_llm"),
    "kv_cache.sink_token_length": _in("sink_token_length", "tensorrt_llm"),
    "kv_cache.cross_kv_cache_fraction": _in("cross_kv_cache_fraction", "tensorrt_llm"),
    **{
        f"repository.{name}": _in(name, "tensorrt_llm")
        for name in (
            "batching_strategy",
            "enable_trt_overlap",
            "gpu_weights_percent",
            "gpu_device_ids",
            "decoding_mode",
            "medusa_choices",
            "eagle_choices",
            "exclude_input_in_output",
            "normalize_log_probs",
            "guided_decoding_backend",
            "encoder_input_features_data_type",
        )
    },
}
"""Keys that are placeholders; the others are changes of the parsed configuration, which any release takes."""

PLANNED: Mapping[tuple[str, str], str] = {
    **{place: key for key, places in KEYS.items() for place in places},
    ("tensorrt_llm", "triton_backend"): "engine.backend",
    ("tensorrt_llm", "engine_dir"): "engine.directory",
    ("tensorrt_llm", "encoder_engine_dir"): "engine.encoder_decoder",
    ("tensorrt_llm", "max_beam_width"): "engine.max_beam_width",
    ("tensorrt_llm", "multi_block_mode"): "engine.multi_block_mode",
    ("tensorrt_llm", "enable_context_fmha_fp32_acc"): "engine.context_fmha_fp32_acc",
    ("tensorrt_llm", "participant_ids"): "serve.disaggregated",
    ("preprocessing", "preprocessing_instance_count"): "repository.preprocessing_instances",
    ("postprocessing", "postprocessing_instance_count"): "repository.postprocessing_instances",
    ("tensorrt_llm_bls", "bls_instance_count"): "repository.bls_instances",
    ("disaggregated_serving_bls", "disaggregated_serving_bls_count"): "repository.bls_instances",
    ("disaggregated_serving_bls", "context_model_name"): "serve.disaggregated",
    ("disaggregated_serving_bls", "generation_model_name"): "serve.disaggregated",
    **{(model, "triton_max_batch_size"): "repository.triton_max_batch_size" for model in GROUPS},
}
"""The key that fills a placeholder; ``repository.parameters`` is for all others."""


def settable(release: Release, model: str) -> Mapping[str, Placeholder]:
    """Placeholders and parameters that the release's template of a model has, by name."""
    return settable_placeholders(release.version, GROUPS[model], model)


def as_words(value: object) -> bool | int | float | str:
    """A key's value as its placeholder takes it: a list is text with commas."""
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value)
    assert isinstance(value, (bool, int, float, str)), value
    return value


def value_of(job: JobFile, key: str) -> Any:
    """Return the value of a key of ``KEYS``."""
    section, name = key.split(".")
    return getattr(getattr(job, section), name)


@cache
def default_of(key: str) -> Any:
    """Return the default of a key of ``KEYS``."""
    return value_of(JobFile(name="defaults"), key)
