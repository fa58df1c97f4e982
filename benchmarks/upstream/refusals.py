"""Configurations of the LLM API; the rules must refuse those that upstream refuses, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SECTIONS = (
    *("speculative_config", "sparse_attention_config", "moe_config", "lora_config", "attention_dp_config"),
    *("nvfp4_gemm_config", "kv_cache_config", "scheduler_config"),
)


def _speculative(**keys: Any) -> dict[str, Any]:
    return {"speculative_config": keys}


def _cache(**keys: Any) -> dict[str, Any]:
    return {"kv_cache_config": keys}


CONFIGURATIONS: Mapping[str, Mapping[str, Any]] = {
    "quant_config": {"quant_config": {"quant_algo": "FP8"}},
    **{f"{section}: null": {section: None} for section in _SECTIONS},
    "cuda_graph_config: null": {"cuda_graph_config": None},
    "decoding_type: DraftTarget": _speculative(
        decoding_type="DraftTarget", max_draft_len=3, speculative_model="/models/draft"
    ),
    "decoding_type: Draft_Target": _speculative(
        decoding_type="Draft_Target", max_draft_len=3, speculative_model="/models/draft"
    ),
    "decoding_type: PARD": _speculative(
        decoding_type="PARD", max_draft_len=3, speculative_model="/models/draft"
    ),
    "decoding_type: Medusa": _speculative(decoding_type="Medusa", max_draft_len=3, num_medusa_heads=3),
    "decoding_type: Lookahead": _speculative(decoding_type="Lookahead"),
    "decoding_type: UserProvided": _speculative(decoding_type="UserProvided", max_draft_len=3),
    "no decoding_type": _speculative(max_draft_len=3),
    "Eagle3 without a model": _speculative(decoding_type="Eagle3", max_draft_len=3),
    "Eagle3 without a length": _speculative(decoding_type="Eagle3", speculative_model="/models/draft"),
    "NGram without lengths": _speculative(decoding_type="NGram"),
    "NGram without max_matching_ngram_size": _speculative(decoding_type="NGram", max_draft_len=3),
    "DraftTarget without a model": _speculative(decoding_type="DraftTarget", max_draft_len=3),
    "MTP of no layers": _speculative(decoding_type="MTP", num_nextn_predict_layers=0),
    "max_attention_window: [0]": _cache(max_attention_window=[0]),
    "max_attention_window: []": _cache(max_attention_window=[]),
    "free_gpu_memory_fraction: 1.5": _cache(free_gpu_memory_fraction=1.5),
    "batch_sizes that do not fit max_batch_size": {
        "cuda_graph_config": {"batch_sizes": [1, 2, 4], "max_batch_size": 64}
    },
    "batch_sizes that fit max_batch_size": {
        "cuda_graph_config": {"batch_sizes": [1, 2, 4, 8], "max_batch_size": 8, "enable_padding": True}
    },
    "moe_config.backend: cutlass": {"moe_config": {"backend": "cutlass"}},
    "capacity_scheduler_policy: max_utilization": {
        "scheduler_config": {"capacity_scheduler_policy": "max_utilization"}
    },
    "dynamic_batch_config of one key": {
        "scheduler_config": {"dynamic_batch_config": {"enable_batch_size_tuning": True}}
    },
    "guided_decoding_backend: outlines": {"guided_decoding_backend": "outlines"},
    "stream_interval: 0": {"stream_interval": 0},
    "waiting_queue_policy": {"scheduler_config": {"waiting_queue_policy": "fcfs"}},
    "transceiver_runtime": {"cache_transceiver_config": {"backend": "UCX", "transceiver_runtime": "CPP"}},
    "use_cute_dsl_blockscaling_mm": {"use_cute_dsl_blockscaling_mm": True},
    "a key that is not there": {"max_bath_size": 8},
}
"""By name, as ``engine.llm_api`` or trtllm-serve's YAML has them."""
