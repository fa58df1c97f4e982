"""A checkpoint on disk: what its own files say of architecture, size, quantization and context."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trtllm_hpc.errors import ConfigError, Diagnostic

_PACKED = {"float-quantized": "fp8", "pack-quantized": "int4"}
_PACKED |= {f"{kind}-pack-quantized": kind for kind in ("mxfp4", "nvfp4")}
"""Formats of compressed-tensors, by the names that the other tools have for them."""


class Checkpoint:
    """A checkpoint of Hugging Face's layout. Raises ConfigError if its files name no architecture."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.resolve().name
        whole = _json(folder / "config.json")
        self.config: Mapping[str, Any] = {**whole, **(whole.get("text_config") or {})}
        """``config.json``; of a multimodal model, the part about text."""
        if not whole.get("architectures"):
            wrong, hint = "has no config.json that names an architecture", "name the checkpoint's folder here"
            raise ConfigError([Diagnostic("not-a-checkpoint", wrong, str(folder), hint=hint)])
        self.architecture = str(whole["architectures"][0])
        found = _json(folder / "hf_quant_config.json").get("quantization")
        found = found or self.config.get("quantization_config") or {}
        method = str(found.get("quant_algo") or found.get("quant_method") or "none").lower()
        is_packed = method == "compressed-tensors"
        self.quantization = _PACKED.get(str(found.get("format")), method) if is_packed else method
        """``none``, ``fp8``, ``nvfp4``, ``mxfp4``, ``int4``, or another name that the checkpoint gives."""
        self.has_fp8_cache = str(found.get("kv_cache_quant_algo")).lower() == "fp8"
        counts = (self.config.get(it) for it in ("num_experts", "num_local_experts", "n_routed_experts"))
        self.experts = next(filter(None, counts), 0)  # of one layer; 0: a dense model
        index = _json(folder / "model.safetensors.index.json")
        files = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        self.stored: int | None = int((index.get("metadata") or {}).get("total_size") or files) or None
        """Bytes of all weights; ``None``: neither their index nor their files are there."""


def _json(file: Path) -> Mapping[str, Any]:
    with suppress(OSError, ValueError):
        value = json.loads(file.read_text(encoding="utf-8"))
        return value if isinstance(value, dict) else {}
    return {}
