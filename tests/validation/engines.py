"""Engine folders as TensorRT-LLM's two generations of build tools leave them, but for the engines' bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtllm_hpc.paths import write_json


def new_engine(
    folder: Path,
    *,
    tensor: int = 4,
    pipeline: int = 1,
    version: str = "0.16.0",
    gpus_per_node: int | None = 8,
    build: dict[str, Any] | None = None,
    plugins: dict[str, Any] | None = None,
) -> Path:
    """What ``trtllm-build`` writes from 0.8 on; ``gpus_per_node`` from 0.10 on."""
    mapping = {"world_size": tensor * pipeline, "tp_size": tensor, "pp_size": pipeline}
    if gpus_per_node is not None:
        mapping["gpus_per_node"] = gpus_per_node
    record = {
        "version": version,
        "pretrained_config": {
            "architecture": "LlamaForCausalLM",
            "dtype": "float16",
            "mapping": mapping,
            "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        },
        "build_config": {
            "max_input_len": 1024,
            "max_seq_len": 2048,
            "max_batch_size": 64,
            "max_beam_width": 1,
            "max_num_tokens": 8192,
            "kv_cache_type": "PAGED",
            **(build or {}),
            "plugin_config": {
                "gpt_attention_plugin": "float16",
                "gemm_plugin": "float16",
                "context_fmha": True,
                "remove_input_padding": True,
                "tokens_per_block": 64,
                "use_paged_context_fmha": False,
                **(plugins or {}),
            },
        },
    }
    folder.mkdir(parents=True)
    write_json(folder / "config.json", record)
    for rank in range(tensor * pipeline):
        (folder / f"rank{rank}.engine").write_bytes(b"plan")
    return folder


def old_engine(
    folder: Path,
    *,
    tensor: int = 4,
    pipeline: int = 1,
    build: dict[str, Any] | None = None,
    plugins: dict[str, Any] | None = None,
) -> Path:
    """What ``build.py`` writes until 0.7."""
    record = {
        "builder_config": {
            "name": "llama",
            "precision": "float16",
            "tensor_parallel": tensor,
            "pipeline_parallel": pipeline,
            "max_batch_size": 8,
            "max_input_len": 2048,
            "max_output_len": 512,
            "max_beam_width": 1,
            "num_heads": 32,
            "num_kv_heads": 32,
            "num_layers": 32,
            "hidden_size": 4096,
            "vocab_size": 32000,
            **(build or {}),
        },
        "plugin_config": {
            "gpt_attention_plugin": "float16",
            "paged_kv_cache": True,
            "remove_input_padding": True,
            "tokens_per_block": 64,
            **(plugins or {}),
        },
    }
    folder.mkdir(parents=True)
    write_json(folder / "config.json", record)
    stages = f"_pp{pipeline}" if pipeline > 1 else ""
    for rank in range(tensor * pipeline):
        (folder / f"llama_float16_tp{tensor}{stages}_rank{rank}.engine").write_bytes(b"plan")
    return folder
