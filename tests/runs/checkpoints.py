"""Checkpoints of well-known models without their weights: ``config.json``, and the size by the index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_LLAMA = {
    **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256},
    **{"max_position_embeddings": 131072, "num_key_value_heads": 8, "torch_dtype": "bfloat16"},
}
_8B = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
_70B = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64}
_QWEN3 = {"vocab_size": 151936, "head_dim": 128, "max_position_embeddings": 40960, "torch_dtype": "bfloat16"}
_QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    **_QWEN3,
    "num_experts": 128,
}
_DEEPSEEK = {
    **{"architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "num_hidden_layers": 61},
    **{
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
    },
    **{"q_lora_rank": 1536, "qk_nope_head_dim": 128, "v_head_dim": 128, "torch_dtype": "bfloat16"},
}
_R1 = {
    **{
        "model_type": "deepseek_v3",
        "n_routed_experts": 256,
        "num_attention_heads": 128,
        "vocab_size": 129280,
    },
    **{"num_key_value_heads": 128, "max_position_embeddings": 163840, "num_nextn_predict_layers": 1},
}
_GPT_OSS = {
    **{"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "head_dim": 64},
    **{"intermediate_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 201088},
    **{"max_position_embeddings": 131072, "quantization_config": {"quant_method": "mxfp4"}},
}
_BLOCK_FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}

CHECKPOINTS: dict[str, tuple[dict[str, Any], int]] = {
    "Llama-3.3-70B-Instruct": ({**_LLAMA, **_70B}, 141_107_412_992),
    "Llama-3.3-70B-Instruct-FP8": ({**_LLAMA, **_70B}, 72_655_872_000),
    "Qwen3-8B": (
        {
            **{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **_QWEN3, "hidden_size": 4096},
            **{"intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32},
            "num_key_value_heads": 8,
        },
        16_381_470_720,
    ),
    "Qwen3-30B-A3B": (
        {
            **{**_QWEN3_MOE, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768},
            **{"num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4},
        },
        61_064_245_248,
    ),
    "DeepSeek-R1-0528": ({**_DEEPSEEK, **_R1, **_BLOCK_FP8}, 688_586_727_753),
    "DeepSeek-R1-0528-FP4-v2": ({**_DEEPSEEK, **_R1}, 413_000_000_000),
    "Kimi-K2-Instruct": (
        {
            **{**_DEEPSEEK, "model_type": "kimi_k2", "n_routed_experts": 384, "num_attention_heads": 64},
            **{"vocab_size": 163840, "num_key_value_heads": 64, "max_position_embeddings": 131072},
            **{"num_nextn_predict_layers": 0, **_BLOCK_FP8},
        },
        1_029_173_256_720,
    ),
    "gpt-oss-120b": ({**_GPT_OSS, "num_hidden_layers": 36, "num_local_experts": 128}, 65_248_815_744),
}
"""``config.json``, and bytes of the weights."""

_MODELOPT = {
    "Llama-3.3-70B-Instruct-FP8": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
    "DeepSeek-R1-0528-FP4-v2": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"},
}
"""``hf_quant_config.json`` of those that NVIDIA's Model Optimizer has quantized."""


def checkpoint(folder: Path, model: str, *, stored: bool = True) -> Path:
    """Write a checkpoint without its weights; ``stored``: with their index."""
    place = folder / model
    place.mkdir()
    config, size = CHECKPOINTS[model]
    (place / "config.json").write_text(json.dumps(config))
    if stored:
        index = {"metadata": {"total_size": size}, "weight_map": {}}
        (place / "model.safetensors.index.json").write_text(json.dumps(index))
    if model in _MODELOPT:
        (place / "hf_quant_config.json").write_text(json.dumps({"quantization": _MODELOPT[model]}))
    return place
