"""Arguments of the LLM API, in sections; one section has variants."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class KvCacheConfig(_Strict):
    """A section."""

    free_gpu_memory_fraction: float = 0.9
    enable_block_reuse: bool = True
    max_attention_window: list[int] | None = None


class CacheTransceiverConfig(_Strict):
    """A section of disaggregated servers."""

    backend: str | None = None
    max_tokens_in_buffer: int | None = None
    transceiver_runtime: str | None = None


class DecodingBaseConfig(_Strict):
    """The section with variants."""

    max_draft_len: int | None = None
    speculative_model: Path | None = None


class NGramDecodingConfig(DecodingBaseConfig):
    """A variant."""

    decoding_type: ClassVar[str] = "NGram"
    max_matching_ngram_size: int = 0


class DraftTargetDecodingConfig(DecodingBaseConfig):
    """A variant whose own name differs from the word that chooses it."""

    decoding_type: ClassVar[str] = "Draft_Target"


_KINDS = {"NGram": NGramDecodingConfig, "DraftTarget": DraftTargetDecodingConfig}


class TorchLlmArgs(_Strict):
    """All arguments."""

    model: Path
    tokenizer: str | None = None
    backend: str | None = None
    dtype: str = "auto"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    moe_expert_parallel_size: int | None = None
    gpus_per_node: int | None = None
    max_batch_size: int | None = None
    max_num_tokens: int | None = None
    max_input_len: int | None = None
    max_seq_len: int | None = None
    disable_overlap_scheduler: bool = False
    env_overrides: dict[str, str] | None = None
    stream_interval: int = 1
    kv_cache_config: KvCacheConfig = Field(default_factory=KvCacheConfig)
    scheduler_config: dict[str, str] | None = None
    cache_transceiver_config: CacheTransceiverConfig | None = None
    speculative_config: NGramDecodingConfig | DraftTargetDecodingConfig | None = None

    @field_validator("stream_interval")
    @classmethod
    def above_zero(cls, value: int) -> int:
        if value <= 0:
            raise ValueError("stream_interval must be positive")
        return value

    @classmethod
    def from_kwargs(cls, **given: Any) -> TorchLlmArgs:
        return cls(**given)


def update_llm_args_with_extra_dict(arguments: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """Merge what the file says into what the command line says."""
    if "speculative_config" in extra:
        given = dict(extra["speculative_config"])
        extra = {**extra, "speculative_config": _KINDS[given.pop("decoding_type")](**given)}
    return {**arguments, **extra}
