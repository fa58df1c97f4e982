"""``modelopt.torch.quantization``, with the configurations of 0.37 that TensorRT-LLM can load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_ALGORITHMS = {"*weight_quantizer": {"num_bits": (4, 3)}}
FP8_DEFAULT_CFG = {"quant_cfg": dict(_ALGORITHMS), "algorithm": "max", "name": "FP8"}
NVFP4_DEFAULT_CFG = {"quant_cfg": dict(_ALGORITHMS), "algorithm": "max", "name": "NVFP4"}
INT4_AWQ_CFG = {"quant_cfg": dict(_ALGORITHMS), "algorithm": "awq_lite", "name": "W4A16_AWQ"}
W4A8_AWQ_BETA_CFG = {"quant_cfg": dict(_ALGORITHMS), "algorithm": "awq_lite", "name": "W4A8_AWQ"}
FP8_KV_CFG = {"quant_cfg": {"*[kv]_bmm_quantizer": {"num_bits": (4, 3)}}}


def quantize(model: Any, configuration: dict[str, Any], forward_loop: Callable[[Any], None]) -> Any:
    """Measure, and remember what for."""
    forward_loop(model)
    model.quantized_by = configuration
    return model
