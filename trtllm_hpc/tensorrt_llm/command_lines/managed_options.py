"""Options that the toolkit sets itself, and the key to write instead."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from trtllm_hpc.tensorrt_llm.command_lines.option_table import ROWS

_FOLDERS: Mapping[str, str] = {
    "--model_dir": "set model.path",
    "--in-file": "set model.path",
    "--output_dir": "leave it out: the engine goes into the cache of engines",
    "--model-dir": "set model.path",
    "--hf_model_dir": "set model.path",
    "--output-model-dir": "leave it out: the checkpoint goes into the cache of engines",
    "--out-dir": "leave it out: the checkpoint goes into the cache of engines",
    "--export_path": "leave it out: the checkpoint goes into the cache of engines",
    "--checkpoint_dir": "leave it out: it is what the step before has written",
    "--gpus_per_node": "leave it out: it comes from the cluster profile and serve.nodes",
    "--model_type": "set model.family",
}
_OTHERS: Mapping[str, str] = {
    "--use_weight_only": "quantization.method",
    "--weight_only_precision": "quantization.method",
    "--per_group": "quantization.method",
    "--qformat": "quantization.method",
    "--autoq_format": "quantization.auto_formats",
    "--auto_quantize_bits": "quantization.auto_bits",
    "--use_fp8_rowwise": "quantization.method",
    "--use_fp8": "quantization.method",
    "--enable_fp8": "quantization.method",
    "--use_smooth_quant": "quantization.method",
    "--smoothquant": "quantization.smoothquant",
    "--per_token": "quantization.per_token",
    "--per_channel": "quantization.per_channel",
    "--group_size": "quantization.group_size",
    "--int8_kv_cache": "quantization.kv_cache",
    "--fp8_kv_cache": "quantization.kv_cache",
    "--kv_cache_dtype": "quantization.kv_cache",
    "--calib_dataset": "quantization.calibration_dataset",
    "--calib_size": "quantization.calibration_size",
    "--batch_size": "quantization.batch_size",
    "--awq_block_size": "quantization.awq_block_size",
    "--quant_ckpt_path": "quantization.checkpoint",
    "--modelopt_quant_ckpt_path": "quantization.checkpoint",
    "--ammo_quant_ckpt_path": "quantization.checkpoint",
    "--quantized_fp8_model_path": "quantization.checkpoint",
    "--ft_model_dir": "quantization.checkpoint",
    "--max_lora_rank": "max_lora_rank",
    "--lora_target_modules": "lora.target_modules",
    "--lora_dir": "lora.directories",
    "--hf_lora_dir": "lora.directories",
    "--lora_ckpt_source": "lora.checkpoint_source",
    "--speculative_decoding_mode": "speculative.mode",
    "--max_draft_len": "speculative.max_draft_len",
    "--max_medusa_token_len": "speculative.max_draft_len",
    "--redrafter_draft_len_per_beam": "speculative.max_draft_len",
    "--medusa_model_dir": "speculative.model",
    "--eagle_model_dir": "speculative.model",
    "--drafter_model_dir": "speculative.model",
    "--num_medusa_heads": "speculative.heads",
    "--redrafter_num_beams": "speculative.heads",
    "--num_medusa_layers": "speculative.layers",
    "--num_eagle_layers": "speculative.layers",
    "--max_non_leaves_per_layer": "speculative.max_non_leaves_per_layer",
}
"""Keys below ``engine``."""


def managing_key(role: str, option: str) -> str | None:
    """What to do instead of writing this option as a raw word; ``None``: nothing else sets it."""
    if role == "lora" and option == "--storage-type":
        return "set engine.lora.storage_type"
    if role == "lora" and option == "--in-file":
        return "set engine.lora.adapters"
    if option in _FOLDERS:
        return _FOLDERS[option]
    key = _table().get((role, option)) or _OTHERS.get(option)
    if key is not None:
        return f"set engine.{key}"
    plugin = re.fullmatch(r"--(?:use_)?([a-z0-9_]+)_plugin", option)
    return f"set engine.plugins.{plugin[1]}" if plugin is not None else None


@cache
def _table() -> Mapping[tuple[str, str], str]:
    return {
        (way.role, way.option): row.key.removeprefix("engine.") for row in reversed(ROWS) for way in row.ways
    }
