"""Quantization: which program does it, with which options.

Sources: examples/quantization/README.md and examples/llama/README.md of 0.7,
0.9 and 0.16; ``quantize.py`` and the ``convert_checkpoint.py`` of those.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

from trtllm_hpc.config.engine import Quantization
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.engines.command_lines.option_table import OptionMapping, OptionRequest, Role, same

Tool = Literal["convert", "quantize"]
_FLAGGED: tuple[Role, ...] = ("convert", "build_py")
_METHOD = "engine.quantization.method"

WEIGHT_ONLY: Mapping[str, str] = {"int8_wo": "int8", "int4_wo": "int4", "int4_gptq": "int4_gptq"}
"""``--weight_only_precision`` of the methods that need no samples."""
QSERVE: Mapping[str, bool] = {"w4a8_qserve_per_group": True, "w4a8_qserve_per_channel": False}
"""QServe's methods, and whether ``--per_group`` is said (examples/llama/README.md of 0.15, 'w4aINT8
quantization (QServe)')."""
CONVERT_ONLY = ("int4_gptq", "fp8_rowwise", *QSERVE)
"""``quantize.py`` has no format for these."""
BY_QUANTIZE = ("int4_awq", "w4a8_awq", "nvfp4", "auto")
"""Only ``quantize.py`` can do these, ``nvfp4`` unless the weights are it already."""
BEFORE_BUILD_PY: Mapping[str, str] = {"fp8": "--quantized_fp8_model_path", "int4_awq": "--quant_ckpt_path"}
"""Methods for which ``quantize.py`` runs before ``build.py``, and the option that names its file."""
UNCALIBRATED = ("int8_wo", "int4_wo", "int4_gptq", "full_prec", "fp8_rowwise", *QSERVE)
"""Methods that need no calibration samples (the KV cache's type may still need some)."""
CALIBRATE_CACHE = "--calibrate-kv-cache"
"""Option of the programs before ``build.py`` that compute the scales of an int8 KV cache."""
WITH_SCALES = "--ft_model_dir"
"""Option of ``build.py`` for a folder of weights with int8 scales."""
CONVERTED = ("--quant_ckpt_path", "--modelopt_quant_ckpt_path", "--ammo_quant_ckpt_path")
"""Options of ``convert_checkpoint.py`` for weights that are quantized already."""


def tool(quantization: Quantization, *, by_build_py: bool) -> Tool | None:
    """Return which of upstream's programs quantizes; ``None`` if nothing is quantized.

    A release that builds by ``build.py`` quantizes weights by itself where no samples are needed.
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
    if quantization.method == "nvfp4" and chosen == "convert":
        return False  # it reads weights that are quantized already
    return quantization.method is not None and quantization.method not in UNCALIBRATED


def requests(job: JobFile, *, by_build_py: bool) -> Iterator[OptionRequest]:
    """Return the requests of ``engine.quantization``."""
    quantization = job.engine.quantization
    chosen = tool(quantization, by_build_py=by_build_py)
    if chosen is None:
        return
    method = quantization.method or "full_prec"
    if chosen == "convert":
        yield from _by_convert(quantization)
    elif method == "auto":
        formats = ",".join(quantization.auto_formats)
        yield OptionRequest(_METHOD, formats, same("--autoq_format", "quantize"))
    else:
        yield OptionRequest(_METHOD, method, same("--qformat", "quantize"))
    kind = quantization.kv_cache
    if kind is not None:
        flags = same(f"--{kind}_kv_cache", *_FLAGGED, translate={kind: True})
        mappings = flags if by_build_py else (OptionMapping("quantize", "--kv_cache_dtype"), *flags)
        yield OptionRequest("engine.quantization.kv_cache", kind, mappings)
    if by_build_py:
        yield from _in_build_py(quantization)
    for key, options in {**DETAILS, "checkpoint": _checkpoint(quantization)}.items():
        value = getattr(quantization, key)
        if value is not None and value is not False:
            yield OptionRequest(f"engine.quantization.{key}", value, options)


def _by_convert(quantization: Quantization) -> Iterator[OptionRequest]:
    """Options of ``convert_checkpoint.py``; ``build.py`` has those of weight-only, too."""
    key, method = _METHOD, quantization.method
    if method is not None and method in WEIGHT_ONLY:
        yield OptionRequest(key, True, same("--use_weight_only", *_FLAGGED), needed=False)
        precision = ("--weight_only_precision", "--use-weight-only-with-precision")
        mappings = tuple(OptionMapping(role, option) for role in _FLAGGED for option in precision)
        yield OptionRequest(key, WEIGHT_ONLY[method], mappings)
        if method == "int4_gptq":
            yield OptionRequest(key, True, same("--per_group", *_FLAGGED), needed=False)
    elif method == "fp8_rowwise":
        yield OptionRequest(key, True, same("--use_fp8_rowwise", *_FLAGGED))
    elif method is not None and method in QSERVE:
        yield OptionRequest(key, True, same("--use_qserve", *_FLAGGED))
        if QSERVE[method]:
            yield OptionRequest(key, True, same("--per_group", *_FLAGGED), needed=False)
    elif method == "nvfp4" and quantization.tool == "convert":
        yield OptionRequest(key, True, same("--use_nvfp4", "convert"))
    elif method == "int8_sq":
        smoothing = quantization.smoothquant
        options = same("--smoothquant", "convert", "prepare")
        done = same("--use_smooth_quant", "build_py", translate=lambda *_: True)
        smoothing = 0.5 if smoothing is None else smoothing  # upstream's example value
        yield OptionRequest(key, smoothing, options + done)
    elif method == "fp8":
        yield OptionRequest(key, True, same("--use_fp8", "convert") + same("--enable_fp8", "build_py"))
    elif method in BY_QUANTIZE and method not in BEFORE_BUILD_PY:
        # No program of this toolchain does it: the problem tells which one does, and since when.
        option = "--autoq_format" if method == "auto" else "--qformat"
        yield OptionRequest(key, method, same(option, "quantize"))


def _in_build_py(quantization: Quantization) -> Iterator[OptionRequest]:
    """Options of ``build.py`` for weights that another program has quantized."""
    options: Mapping[str | None, Mapping[str, Any]] = {
        "fp8": {"--enable_fp8": True},
        "int4_awq": {"--use_weight_only": True, "--weight_only_precision": "int4_awq", "--per_group": True},
        "int8_sq": {"--use_smooth_quant": True},
    }
    for option, value in options.get(quantization.method, {}).items():
        yield OptionRequest(_METHOD, value, same(option, "build_py"))
    if quantization.kv_cache == "int8":
        calibrated = same(CALIBRATE_CACHE, "prepare")
        yield OptionRequest("engine.quantization.kv_cache", True, calibrated, needed=False)


DETAILS: Mapping[str, tuple[OptionMapping, ...]] = {
    "per_token": same("--per_token", *_FLAGGED),
    "per_channel": same("--per_channel", *_FLAGGED),
    "group_size": same("--group_size", *_FLAGGED),
    "calibration_dataset": same("--calib_dataset", "quantize", "convert"),
    "calibration_size": same("--calib_size", "quantize", "convert"),
    "batch_size": same("--batch_size", "quantize"),
    "awq_block_size": same("--awq_block_size", "quantize"),
    "auto_bits": same("--auto_quantize_bits", "quantize"),
}
"""Keys of ``engine.quantization`` whose options do not depend on the method."""


def needs_checkpoint(quantization: Quantization, options: Collection[str]) -> bool:
    """Whether the method needs weights that are quantized already, in a place of their own.

    Qwen's ``convert_checkpoint.py`` has none of the ``options`` for it: it reads GPTQ's weights from the
    model's folder (examples/qwen/README.md, 'INT4-GPTQ').
    """
    of_checkpoint = {mapping.option for mapping in _checkpoint(quantization)}
    by_another_tool = quantization.method == "int4_gptq" or quantization.method in QSERVE
    return by_another_tool and not of_checkpoint.isdisjoint(options)


def _checkpoint(quantization: Quantization) -> tuple[OptionMapping, ...]:
    """Options for weights that are quantized already; their names followed the tool's."""
    method = quantization.method or ""
    quantized = {**BEFORE_BUILD_PY, "int4_gptq": "--quant_ckpt_path"}
    converted = (OptionMapping("convert", option) for option in CONVERTED)
    return (*converted, OptionMapping("build_py", quantized.get(method, WITH_SCALES)))
