"""Quantization: which program does it, with which options.

Sources: examples/quantization/README.md and examples/llama/README.md of 0.7,
0.9 and 0.16; ``quantize.py`` and the ``convert_checkpoint.py`` of those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from trtllm_hpc.config.engine import Quantization
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.tensorrt_llm.command_lines.option_request import OptionMapping, OptionRequest, Role

Tool = Literal["convert", "quantize"]
_FLAGGED: tuple[Role, ...] = ("convert", "build_py")

WEIGHT_ONLY: Mapping[str, str] = {"int8_wo": "int8", "int4_wo": "int4", "int4_gptq": "int4_gptq"}
"""``--weight_only_precision`` of the methods that need no samples."""
CONVERT_ONLY = ("int4_gptq", "fp8_rowwise")
"""``quantize.py`` has no format for these."""
BY_QUANTIZE = ("int4_awq", "w4a8_awq", "auto")
"""Only ``quantize.py`` can do these."""
BEFORE_BUILD_PY: Mapping[str, str] = {"fp8": "--quantized_fp8_model_path", "int4_awq": "--quant_ckpt_path"}
"""Methods for which ``quantize.py`` runs before ``build.py``, and the option that names its file."""
UNCALIBRATED = ("int8_wo", "int4_wo", "int4_gptq", "full_prec", "fp8_rowwise")
"""Methods that need no calibration samples (the KV cache's type may still need some)."""
DEFAULT_SMOOTHING = 0.5
"""Upstream's example value of ``--smoothquant``."""


def tool(quantization: Quantization, *, by_build_py: bool) -> Tool | None:
    """Return which of upstream's programs quantizes; ``None`` if nothing is quantized.

    Args:
        by_build_py: whether the release builds by ``build.py``, which quantizes
            weights by itself where no samples are needed.
    """
    method = quantization.method
    if method is None and quantization.kv_cache is None:
        return None
    if by_build_py:
        return "quantize" if method in BEFORE_BUILD_PY and quantization.checkpoint is None else "convert"
    if quantization.tool is not None:
        return quantization.tool
    return "convert" if method in CONVERT_ONLY or method in WEIGHT_ONLY else "quantize"


def is_calibrated(quantization: Quantization, chosen: Tool | None) -> bool:
    """Whether the chosen program needs calibration samples."""
    if chosen is None:
        return False
    if quantization.kv_cache is not None and (chosen == "quantize" or quantization.kv_cache == "int8"):
        return True
    return quantization.method is not None and quantization.method not in UNCALIBRATED


def requests(job: JobFile, *, by_build_py: bool) -> Iterator[OptionRequest]:
    """Return the requests of ``engine.quantization``."""
    quantization = job.engine.quantization
    chosen = tool(quantization, by_build_py=by_build_py)
    if chosen is None:
        return
    yield from _by_quantize(quantization) if chosen == "quantize" else _by_convert(quantization)
    kind = quantization.kv_cache
    if kind is not None:
        flags = tuple(OptionMapping(role, f"--{kind}_kv_cache", {kind: True}) for role in _FLAGGED)
        mappings = flags if by_build_py else (OptionMapping("quantize", "--kv_cache_dtype"), *flags)
        yield OptionRequest("engine.quantization.kv_cache", kind, mappings)
    if by_build_py:
        yield from _in_build_py(quantization)
    yield from _details(quantization)


def _by_quantize(quantization: Quantization) -> Iterator[OptionRequest]:
    key, method = "engine.quantization", quantization.method
    if method == "auto":
        formats = ",".join(quantization.auto_formats)
        yield OptionRequest(f"{key}.method", formats, (OptionMapping("quantize", "--autoq_format"),))
    else:
        yield OptionRequest(f"{key}.method", method or "full_prec", (OptionMapping("quantize", "--qformat"),))


def _by_convert(quantization: Quantization) -> Iterator[OptionRequest]:
    """Options of ``convert_checkpoint.py``; ``build.py`` has those of weight-only, too."""
    key, method = "engine.quantization.method", quantization.method
    if method is not None and method in WEIGHT_ONLY:
        yield _either(key, "--use_weight_only", True, needed=False)
        precision = ("--weight_only_precision", "--use-weight-only-with-precision")
        mappings = tuple(OptionMapping(role, option) for role in _FLAGGED for option in precision)
        yield OptionRequest(key, WEIGHT_ONLY[method], mappings)
        if method == "int4_gptq":
            yield _either(key, "--per_group", True)
    elif method == "fp8_rowwise":
        yield _either(key, "--use_fp8_rowwise", True)
    elif method == "int8_sq":
        smoothing = quantization.smoothquant
        options = (OptionMapping("convert", "--smoothquant"), OptionMapping("prepare", "--smoothquant"))
        done = (OptionMapping("build_py", "--use_smooth_quant", lambda *_: True),)
        yield OptionRequest(key, DEFAULT_SMOOTHING if smoothing is None else smoothing, options + done)
    elif method == "fp8":
        yield OptionRequest(
            key, True, (OptionMapping("convert", "--use_fp8"), OptionMapping("build_py", "--enable_fp8"))
        )
    elif method in BY_QUANTIZE and method not in BEFORE_BUILD_PY:
        # No program of this toolchain does it: the problem tells which one does, and since when.
        mapping = (
            OptionMapping("quantize", "--autoq_format", _formats)
            if method == "auto"
            else OptionMapping("quantize", "--qformat")
        )
        yield OptionRequest(key, method, (mapping,))


def _formats(*_: object) -> None:
    """``auto`` is no format; ``auto_formats`` names them."""


def _either(key: str, option: str, value: Any, *, needed: bool = True) -> OptionRequest:
    return OptionRequest(
        key, value, (OptionMapping("convert", option), OptionMapping("build_py", option)), needed=needed
    )


def _in_build_py(quantization: Quantization) -> Iterator[OptionRequest]:
    """Options of ``build.py`` for weights that another program has quantized."""
    key, method = "engine.quantization.method", quantization.method
    options: Mapping[str, Any] = {}
    if method == "fp8":
        options = {"--enable_fp8": True}
    elif method == "int4_awq":
        options = {"--use_weight_only": True, "--weight_only_precision": "int4_awq", "--per_group": True}
    elif method == "int8_sq":
        options = {"--use_smooth_quant": True}
    for option, value in options.items():
        yield OptionRequest(key, value, (OptionMapping("build_py", option),))
    if quantization.kv_cache == "int8":
        yield OptionRequest(
            "engine.quantization.kv_cache",
            True,
            (OptionMapping("prepare", "--calibrate-kv-cache"),),
            needed=False,
        )


def _details(quantization: Quantization) -> Iterator[OptionRequest]:
    plain: tuple[tuple[str, Any, tuple[OptionMapping, ...]], ...] = (
        ("per_token", quantization.per_token or None, _convert("--per_token")),
        ("per_channel", quantization.per_channel or None, _convert("--per_channel")),
        ("group_size", quantization.group_size, _convert("--group_size")),
        ("calibration_dataset", quantization.calibration_dataset, _calibration("--calib_dataset")),
        ("calibration_size", quantization.calibration_size, _calibration("--calib_size")),
        ("batch_size", quantization.batch_size, (OptionMapping("quantize", "--batch_size"),)),
        ("awq_block_size", quantization.awq_block_size, (OptionMapping("quantize", "--awq_block_size"),)),
        ("auto_bits", quantization.auto_bits, (OptionMapping("quantize", "--auto_quantize_bits"),)),
        ("checkpoint", quantization.checkpoint, _checkpoint(quantization)),
    )
    for key, value, mappings in plain:
        if value is not None:
            yield OptionRequest(f"engine.quantization.{key}", value, mappings)


def _checkpoint(quantization: Quantization) -> tuple[OptionMapping, ...]:
    """Options for weights that are quantized already; their names followed the tool's."""
    by_convert = ("--quant_ckpt_path", "--modelopt_quant_ckpt_path", "--ammo_quant_ckpt_path")
    method = quantization.method or ""
    by_build_py = {**BEFORE_BUILD_PY, "int4_gptq": "--quant_ckpt_path"}.get(method, "--ft_model_dir")
    return (
        *(OptionMapping("convert", option) for option in by_convert),
        OptionMapping("build_py", by_build_py),
    )


def _convert(option: str) -> tuple[OptionMapping, ...]:
    return (OptionMapping("convert", option), OptionMapping("build_py", option))


def _calibration(option: str) -> tuple[OptionMapping, ...]:
    return (OptionMapping("quantize", option), OptionMapping("convert", option))
