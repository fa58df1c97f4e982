"""Configurations of the LLM API; the rules must refuse those that upstream refuses, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SECTIONS = (
    *("speculative_config", "sparse_attention_config", "moe_config", "lora_config", "attention_dp_config"),
    *(
        "nvfp4_gemm_config",
        "kv_cache_config",
        "scheduler_config",
        "layer_wise_benchmarks_config",
        "cp_config",
    ),
    *("cuda_graph_config", "cache_transceiver_config", "torch_compile_config", "peft_cache_config"),
)


def _speculative(kind: str, **keys: Any) -> dict[str, Any]:
    return {"speculative_config": {"decoding_type": kind, **keys}}


def _cache(**keys: Any) -> dict[str, Any]:
    return {"kv_cache_config": keys}


def _graphs(**keys: Any) -> dict[str, Any]:
    return {"cuda_graph_config": keys}


CONFIGURATIONS: Mapping[str, Mapping[str, Any]] = {
    # Keys.
    "quant_config": {"quant_config": {"quant_algo": "FP8"}},
    "a key that is not there": {"max_bath_size": 8},
    "a key that is not there, in a section": _cache(fraction=0.5),
    "tool_parser": {"tool_parser": "qwen3"},
    "waiting_queue_policy": {"scheduler_config": {"waiting_queue_policy": "fcfs"}},
    "transceiver_runtime": {"cache_transceiver_config": {"backend": "UCX", "transceiver_runtime": "CPP"}},
    "use_cute_dsl_blockscaling_mm": {"use_cute_dsl_blockscaling_mm": True},
    # Sections that are null.
    **{f"{section}: null": {section: None} for section in _SECTIONS},
    # Speculation.
    **{
        f"decoding_type: {kind}": _speculative(kind, max_draft_len=3, speculative_model="/models/draft")
        for kind in (
            "AUTO",
            "DraftTarget",
            "Draft_Target",
            "Eagle",
            "Eagle3",
            "Medusa",
            "Lookahead",
            "MTP",
            "PARD",
        )
    },
    "decoding_type: UserProvided": _speculative("UserProvided", max_draft_len=3),
    "decoding_type: User_Provided": _speculative("User_Provided", max_draft_len=3),
    "no decoding_type": {"speculative_config": {"max_draft_len": 3}},
    "Eagle3 without a model": _speculative("Eagle3", max_draft_len=3),
    "Eagle3 without a length": _speculative("Eagle3", speculative_model="/models/draft"),
    "Eagle3 of length 0": _speculative("Eagle3", max_draft_len=0, speculative_model="/models/draft"),
    "NGram without lengths": _speculative("NGram"),
    "NGram without max_matching_ngram_size": _speculative("NGram", max_draft_len=3),
    "NGram without max_draft_len": _speculative("NGram", max_matching_ngram_size=3),
    "NGram with both lengths": _speculative("NGram", max_draft_len=3, max_matching_ngram_size=2),
    "DraftTarget without a model": _speculative("DraftTarget", max_draft_len=3),
    "MTP without its number of layers": _speculative("MTP"),
    "MTP of no layers": _speculative("MTP", num_nextn_predict_layers=0),
    "SaveState without a folder": _speculative("SaveState"),
    # Values.
    "max_attention_window: [0]": _cache(max_attention_window=[0]),
    "max_attention_window: []": _cache(max_attention_window=[]),
    "max_attention_window: [4096, 8192]": _cache(max_attention_window=[4096, 8192]),
    "free_gpu_memory_fraction: 1.5": _cache(free_gpu_memory_fraction=1.5),
    "free_gpu_memory_fraction: 0": _cache(free_gpu_memory_fraction=0),
    "max_util_for_resume: 2": _cache(max_util_for_resume=2),
    "mamba_ssm_cache_dtype: fp8": _cache(mamba_ssm_cache_dtype="fp8"),
    "batch_sizes that do not fit max_batch_size": _graphs(batch_sizes=[1, 2, 4], max_batch_size=64),
    "batch_sizes that end with max_batch_size": _graphs(batch_sizes=[1, 2, 4], max_batch_size=4),
    "batch_sizes that fit max_batch_size": _graphs(
        batch_sizes=[1, 2, 4, 8], max_batch_size=8, enable_padding=True
    ),
    "moe_config.backend: cutlass": {"moe_config": {"backend": "cutlass"}},
    "moe_config.backend: TRITON": {"moe_config": {"backend": "TRITON"}},
    "capacity_scheduler_policy: max_utilization": {
        "scheduler_config": {"capacity_scheduler_policy": "max_utilization"}
    },
    "dynamic_batch_config of one key": {
        "scheduler_config": {"dynamic_batch_config": {"enable_batch_size_tuning": True}}
    },
    "cache_transceiver_config.backend: ucx": {"cache_transceiver_config": {"backend": "ucx"}},
    "algorithm: DSA": {"sparse_attention_config": {"algorithm": "DSA"}},
    "no algorithm": {"sparse_attention_config": {"index_topk": 8}},
    "guided_decoding_backend: outlines": {"guided_decoding_backend": "outlines"},
    "allreduce_strategy: RING": {"allreduce_strategy": "RING"},
    "load_format: DUMMY": {"load_format": "DUMMY"},
    "load_format: safetensors": {"load_format": "safetensors"},
    "stream_interval: 0": {"stream_interval": 0},
    "batch_wait_max_tokens_ratio: 2": {"batch_wait_max_tokens_ratio": 2},
    "kv_connector_config of one key": {"kv_connector_config": {"connector_module": "a"}},
}
"""By name, as ``engine.llm_api`` or trtllm-serve's YAML has them."""

STRICTER = (
    "batch_sizes that fit max_batch_size",  # upstream's own message advises against both
    "algorithm: DSA",  # lower case is what every release takes
)
"""Those that the rules refuse on purpose, whatever upstream does."""
