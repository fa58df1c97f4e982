"""A part of ``tensorrt_llm/llmapi/llm_args.py`` (1.3.0rc3): the keys taken, and how sections are read."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, create_model
from tensorrt_llm import FAULTS  # type: ignore[import-not-found]

_GONE = tuple(fault.removeprefix("without-key:") for fault in FAULTS if fault.startswith("without-key:"))


_NGRAM = "N_Gram" if "ngram-renamed" in FAULTS else "NGram"


class StrictBaseModel(BaseModel):
    model_config = ConfigDict(extra="forbid")


def _section(name: str, *keys: str) -> type[StrictBaseModel]:
    fields: dict[str, Any] = {key: (Any, None) for key in keys if f"{name}.{key}" not in _GONE}
    return create_model(name, __base__=StrictBaseModel, **fields)


KvCacheConfig = _section(
    "KvCacheConfig",
    *("dtype", "enable_block_reuse", "event_buffer_max_size", "free_gpu_memory_fraction", "host_cache_size"),
    *("max_attention_window", "max_tokens", "sink_token_length", "tokens_per_block"),
)
SchedulerConfig = _section("SchedulerConfig", "capacity_scheduler_policy", "dynamic_batch_config")
CacheTransceiverConfig = _section("CacheTransceiverConfig", "backend", "max_tokens_in_buffer")


class DecodingBaseConfig(StrictBaseModel):
    decoding_type: ClassVar[str] = ""
    max_draft_len: int | None = None
    speculative_model: str | None = None

    @classmethod
    def from_dict(cls, data: dict[str, Any], backend: str | None = None) -> DecodingBaseConfig:
        kinds: dict[str, type[DecodingBaseConfig]] = {"MTP": MTPDecodingConfig, _NGRAM: NGramDecodingConfig}
        kind = kinds.get(data.get("decoding_type", ""))
        if kind is None:
            raise ValueError(f"Invalid decoding type: {data.get('decoding_type')}")
        return kind(**{key: value for key, value in data.items() if key != "decoding_type"})


class MTPDecodingConfig(DecodingBaseConfig):
    decoding_type: ClassVar[str] = "MTP"
    num_nextn_predict_layers: int = 1


class NGramDecodingConfig(DecodingBaseConfig):
    decoding_type: ClassVar[str] = "NGram"
    max_matching_ngram_size: int


_PLAIN = (
    *("model", "tokenizer", "backend", "dtype", "tensor_parallel_size", "pipeline_parallel_size"),
    *("context_parallel_size", "moe_expert_parallel_size", "moe_tensor_parallel_size", "gpus_per_node"),
    *(
        "max_batch_size",
        "max_num_tokens",
        "max_seq_len",
        "max_beam_width",
        "max_input_len",
        "trust_remote_code",
    ),
    *("enable_chunked_prefill", "disable_overlap_scheduler", "cuda_graph_config", "reasoning_parser"),
    *("num_postprocess_workers", "custom_tokenizer", "revision", "otlp_traces_endpoint"),
    "fail_fast_on_attention_window_too_large",
)
_SECTIONS: dict[str, Any] = {
    "kv_cache_config": KvCacheConfig,
    "scheduler_config": SchedulerConfig,
    "cache_transceiver_config": CacheTransceiverConfig,
    "speculative_config": DecodingBaseConfig,
}


class _Arguments(StrictBaseModel):
    @classmethod
    def from_kwargs(cls, **given: Any) -> _Arguments:
        return cls(**given)


_FIELDS: dict[str, Any] = {key: (Any, None) for key in _PLAIN}
_FIELDS |= {key: (kind | None, None) for key, kind in _SECTIONS.items()}
TorchLlmArgs = create_model(
    "TorchLlmArgs", __base__=_Arguments, **{key: it for key, it in _FIELDS.items() if key not in _GONE}
)


def update_llm_args_with_extra_dict(arguments: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """Merge as upstream does: a section that is ``null`` ends with a TypeError."""
    merged = {**arguments, **extra}
    for name in ("kv_cache_config", "scheduler_config"):
        if name in extra:
            merged[name] = _SECTIONS[name](**extra[name])
    if "speculative_config" in extra:
        merged["speculative_config"] = DecodingBaseConfig.from_dict(extra["speculative_config"])
    return merged
