"""Which placeholders of upstream's templates each key of ``repository`` fills."""

from __future__ import annotations

from collections.abc import Mapping

from trtllm_hpc.tensorrt_llm.releases import Release
from trtllm_hpc.tensorrt_llm.releases.placeholders import Placeholder, settable_placeholders

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
    "decoupled": _in("decoupled_mode", "tensorrt_llm", "tensorrt_llm_bls", "disaggregated_serving_bls"),
    "tokenizer": _in("tokenizer_dir", "preprocessing", "postprocessing"),
    "tokenizer_type": _in("tokenizer_type", "preprocessing", "postprocessing"),
    "add_special_tokens": _in("add_special_tokens", "preprocessing"),
    "skip_special_tokens": _in("skip_special_tokens", "postprocessing"),
    "accumulate_tokens": _in("accumulate_tokens", "tensorrt_llm_bls"),
    "max_queue_delay_microseconds": _in("max_queue_delay_microseconds", "tensorrt_llm", "preprocessing"),
    "max_queue_size": _in("max_queue_size", "tensorrt_llm", "preprocessing"),
    "kv_cache_reuse": _in("enable_kv_cache_reuse", "tensorrt_llm"),
    "chunked_context": _in("enable_chunked_context", "tensorrt_llm"),
    # 0.6 has the window under another name.
    "max_attention_window_size": (
        ("tensorrt_llm", "max_attention_window_size"),
        ("tensorrt_llm", "max_kv_cache_length"),
    ),
    "logits_datatype": _in(
        "logits_datatype", "tensorrt_llm", "ensemble", "tensorrt_llm_bls", "disaggregated_serving_bls"
    ),
    "prompt_embedding_table_data_type": _in(
        "prompt_embedding_table_data_type", "tensorrt_llm", "tensorrt_llm_bls"
    ),
    **{
        name: _in(name, "tensorrt_llm")
        for name in (
            "batching_strategy",
            "batch_scheduler_policy",
            "enable_trt_overlap",
            "max_tokens_in_paged_kv_cache",
            "kv_cache_free_gpu_mem_fraction",
            "kv_cache_host_memory_bytes",
            "sink_token_length",
            "cross_kv_cache_fraction",
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
    **{place: f"repository.{key}" for key, places in KEYS.items() for place in places},
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
