"""``modelopt.torch.export``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def export_hf_checkpoint(model: Any, export_dir: str) -> None:
    """Write configuration and weights, and what they were quantized to."""
    model.save_pretrained(export_dir)
    configuration = model.quantized_by
    has_cache = "*[kv]_bmm_quantizer" in configuration["quant_cfg"]
    found = {"quant_algo": configuration["name"], "kv_cache_quant_algo": "FP8" if has_cache else None}
    written = {"producer": {"name": "modelopt", "version": "0.37.0"}, "quantization": found}
    Path(export_dir, "hf_quant_config.json").write_text(json.dumps(written), encoding="utf-8")
