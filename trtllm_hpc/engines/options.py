"""The keys of ``engine`` as options of upstream's programs: one table, and the keys that depend on others.

For each key, the options that have carried it in one release or another, in the order of preference. Sources:
the lists of options in ``releases/data``, each with its own source; the README files of examples/quantization
and examples/llama of 0.7, 0.9, 0.15 and 0.16, with their ``quantize.py`` and ``convert_checkpoint.py``; the
README of examples/lookahead (0.11 to 1.0), and docs/source/advanced/speculative-decoding.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trtllm_hpc.config.engine import Plugin, Quantization
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.errors import TrtllmHpcError
from trtllm_hpc.tensorrt_llm.releases.commands import Command, Option

Role = Literal["build_py", "prepare", "convert", "quantize", "build"]
"""What a program does in a toolchain; ``engine.options`` has the same names."""
OMIT: Any = object()
"""A value that is expressed by leaving the option out."""
NO_PLUGIN = "disable"
EXTERNAL = "draft_tokens_external"
"""The mode of speculative decoding whose prompts are computed over the paged KV cache, too, as upstream's
guides want it."""


class NotExpressible(TrtllmHpcError):
    """A value that no option can carry in this release; the message follows the name of the key."""


@dataclass(frozen=True)
class Context:
    """What the value of an option may depend on besides the value of the key."""

    dtype: str | None
    """The type that the model is computed in; ``None`` where only its ``config.json`` tells."""
    max_input_len: int | None
    """Longest prompt that the job file asks for."""


Translate = Callable[[Any, Option, Command, Context], Any]
"""Return the value as the option takes it; ``None`` if this option cannot carry it."""


@dataclass(frozen=True)
class OptionMapping:
    """One option of one program, and how the value of the key becomes the option's."""

    role: Role
    option: str
    translate: Mapping[Any, Any] | Translate | None = None
    """The option's value for the key's; a mapping need not hold every value. ``None``: the same value."""

    def value(self, value: Any, option: Option, command: Command, context: Context) -> Any:
        """Return the value as this option takes it; ``None`` if it cannot carry it."""
        if self.translate is None:
            return value
        if callable(self.translate):
            return self.translate(value, option, command, context)
        return self.translate.get(value)


def same(
    option: str, *roles: Role, translate: Mapping[Any, Any] | Translate | None = None
) -> tuple[OptionMapping, ...]:
    """Return the option of that name in each of these programs."""
    return tuple(OptionMapping(role, option, translate) for role in roles)


@dataclass(frozen=True)
class OptionRequest:
    """A key that the job file sets, to be expressed by an option."""

    key: str
    """Dotted, for diagnostics."""
    value: Any
    mappings: tuple[OptionMapping, ...]
    """In the order of preference."""
    in_every_program: bool = False
    """Whether each program that has an option for it gets it; else the first only."""
    needed: bool = True
    """Whether it is an error that no program has an option for it."""


def argv(option: Option, value: Any) -> tuple[str, ...] | None:
    """Return an option as arguments, none for a flag that is off; ``None`` if it cannot have the value."""
    if value is OMIT:
        return ()
    if value is None:
        return None
    if option.form == "flag":
        if not isinstance(value, bool) or (not value and option.default):
            return None
        return (option.name,) if value else ()
    if option.form == "list":
        items = [value] if isinstance(value, str) or not isinstance(value, Sequence) else list(value)
    else:
        items = value if isinstance(value, list) else [value]
        if len(items) != 1:
            return None
        if isinstance(items[0], bool):
            items = ["enable" if items[0] else "disable"]
            if not option.choices:
                return None
    words = [f"{item:g}" if isinstance(item, float) else str(item) for item in items]
    if not words or (option.choices and not set(words) <= set(option.choices)):
        return None
    return (option.name, *words)


# How values become those of an option ------------------------------------------------


def _output_len(value: Any, option: Option, command: Command, context: Context) -> int | None:
    """Prompt and answer together as the answer alone, which releases before 0.11 ask for."""
    prompt = context.max_input_len
    if prompt is None:
        default = command.options.get("--max_input_len")
        prompt = default.default if default is not None and isinstance(default.default, int) else None
    if prompt is None:
        raise NotExpressible(
            f"is written as {option.name} in {command.name} {command.release}, without the prompt",
            hint="set engine.max_input_len too",
        )
    if value <= prompt:
        raise NotExpressible(
            f"leaves no room for an answer: without engine.max_input_len a prompt of {command.name} "
            f"{command.release} may have {prompt} tokens",
            hint=f"set it above {prompt}, or set engine.max_input_len",
        )
    return int(value) - prompt


def _model_dtype(value: Any, option: Option, command: Command, context: Context) -> str | None:
    """``auto`` as the type itself, where the release's option does not know ``auto``."""
    if value != "auto" or "auto" in option.choices or option.default == "auto":
        return str(value)
    return context.dtype


def _storage_type(value: Any, option: Option, command: Command, context: Context) -> str | None:
    """The type of prepared weights, as ``build.py`` reads them: float16 as such, all others as float32."""
    dtype = _model_dtype(value, option, command, context)
    if "fp16" not in option.choices:
        return dtype
    return "fp16" if dtype in (None, "float16") else "fp32"


def _plugin_value(value: Any, option: Option, command: Command, context: Context) -> Any:
    if option.form == "flag":
        return {"enable": True, NO_PLUGIN: False}.get(value)
    if value == NO_PLUGIN and NO_PLUGIN not in option.choices and not option.default:
        return OMIT
    return _model_dtype(value, option, command, context) or "float16"


# The table ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A key of the engine section and the options that carry it."""

    key: str
    mappings: tuple[OptionMapping, ...]
    in_every_program: bool = False
    neutral: Any = None
    """A value that needs no option, since every release does the same without one."""
    always: bool = False
    """Whether the neutral value is written, too, where there is an option for it."""
    needed: bool = True
    """Whether it is an error that no program has an option for a value that is not neutral."""


_WORLD = same("--world_size", "build_py", "convert")
"""All ranks; programs that know tensor parallelism only have this instead of ``--tp_size``."""
_ALL_LOGITS = same("--gather_all_token_logits", "build", "build_py")

ROWS: Sequence[Row] = (
    # The layout of the ranks.
    Row("world_size", _WORLD, neutral=1, always=True, needed=False),
    Row(
        "tensor_parallel",
        same("--tp_size", "build_py", "convert", "quantize")
        + same("--tensor-parallelism", "prepare")
        + _WORLD,
        in_every_program=True,
        neutral=1,
        always=True,
    ),
    Row("pipeline_parallel", same("--pp_size", "build_py", "convert", "quantize"), neutral=1),
    Row("context_parallel", same("--cp_size", "convert", "quantize"), neutral=1),
    Row("moe_tensor_parallel", same("--moe_tp_size", "convert", "quantize")),
    Row("moe_expert_parallel", same("--moe_ep_size", "convert", "quantize")),
    # Numbers.
    Row(
        "dtype",
        same("--dtype", "build_py", "convert", "quantize", translate=_model_dtype)
        + same("--storage-type", "prepare", translate=_storage_type),
        in_every_program=True,
        neutral="auto",
        always=True,
    ),
    Row("max_batch_size", same("--max_batch_size", "build_py", "build")),
    Row("max_input_len", same("--max_input_len", "build_py", "build")),
    Row(
        "max_seq_len",
        same("--max_seq_len", "build") + same("--max_output_len", "build", "build_py", translate=_output_len),
    ),
    Row("max_num_tokens", same("--max_num_tokens", "build_py", "build")),
    Row("opt_num_tokens", same("--opt_num_tokens", "build_py", "build")),
    Row("max_beam_width", same("--max_beam_width", "build_py", "build")),
    Row("max_prompt_embedding_table_size", same("--max_prompt_embedding_table_size", "build_py", "build")),
    Row("tokens_per_block", same("--tokens_per_block", "build_py", "build")),
    # What an answer may carry besides its tokens.
    Row(
        "gather_context_logits",
        same("--gather_context_logits", "build", "build_py") + _ALL_LOGITS,
        neutral=False,
    ),
    Row(
        "gather_generation_logits",
        same("--gather_generation_logits", "build", "build_py") + _ALL_LOGITS,
        neutral=False,
    ),
    # How it is computed.
    Row(
        "kv_cache_type",
        same("--kv_cache_type", "build")
        + same("--paged_kv_cache", "build", "build_py", translate={"paged": True, "continuous": False}),
    ),
    Row("inflight_batching", same("--use_inflight_batching", "build_py")),
    Row("remove_input_padding", same("--remove_input_padding", "build_py", "build")),
    Row("context_fmha", same("--context_fmha", "build") + same("--enable_context_fmha", "build", "build_py")),
    Row(
        "context_fmha_fp32_acc",
        same("--context_fmha_fp32_acc", "build")
        + same("--enable_context_fmha_fp32_acc", "build", "build_py"),
    ),
    Row("paged_context_fmha", same("--use_paged_context_fmha", "build", "build_py")),
    Row("fp8_context_fmha", same("--use_fp8_context_fmha", "build", "build_py")),
    Row("multi_block_mode", same("--multi_block_mode", "build", "build_py")),
    Row("custom_all_reduce", same("--use_custom_all_reduce", "build", "build_py")),
    Row("fused_mlp", same("--use_fused_mlp", "build", "build_py", "convert")),
    Row("reduce_fusion", same("--reduce_fusion", "build")),
    Row("multiple_profiles", same("--multiple_profiles", "build")),
    Row("weight_streaming", same("--weight_streaming", "build")),
    Row("weight_sparsity", same("--weight_sparsity", "build")),
    Row("strongly_typed", same("--strongly_typed", "build", "build_py")),
    Row("embedding_sharing", same("--use_embedding_sharing", "convert", "build_py")),
    Row("parallel_embedding", same("--use_parallel_embedding", "convert", "build_py")),
    Row("hidden_act", same("--hidden_act", "build_py")),
    Row(
        "workers",
        same("--workers", "convert", "build")
        + same("--parallel_build", "build_py", translate=lambda value, *_: value > 1)
        + same("--processes", "prepare"),
        in_every_program=True,
    ),
)


def requests(job: JobFile, *, by_build_py: bool) -> Iterator[OptionRequest]:
    """Return a request for each key of ``engine`` that the job file sets."""
    for row in ROWS:
        value = getattr(job.engine, row.key)
        is_neutral = value == row.neutral and type(value) is type(row.neutral)
        if value is not None and (row.always or not is_neutral):
            needed = row.needed and not is_neutral
            yield OptionRequest(f"engine.{row.key}", value, row.mappings, row.in_every_program, needed)
    for name, setting in job.engine.plugins.items():
        yield _plugin(f"engine.plugins.{name}", name, setting)
    yield from _quantization(job.engine.quantization, by_build_py=by_build_py)
    yield from lora(job)
    yield from _speculative(job)


def _plugin(key: str, name: str, value: Plugin) -> OptionRequest:
    """A TensorRT plugin, on with a type or off; upstream names them with and without ``use_``."""
    named = same(f"--{name}_plugin", "build", translate=_plugin_value)
    used = same(f"--use_{name}_plugin", "build", "build_py", translate=_plugin_value)
    return OptionRequest(key, value, named + used)


LORA: Mapping[str, tuple[str, ...]] = {
    "target_modules": ("--lora_target_modules",),
    "directories": ("--lora_dir", "--hf_lora_dir"),
    "checkpoint_source": ("--lora_ckpt_source",),
}
"""Options of the keys of ``engine.lora``."""


def lora(job: JobFile) -> Iterator[OptionRequest]:
    """LoRA: what the engine must be built with so that requests may name adapters."""
    engine = job.engine
    if engine.max_lora_rank == 0:
        return
    in_programs: tuple[Role, ...] = ("build", "convert", "build_py")  # in 0.8 the conversion, later the build
    yield OptionRequest("engine.max_lora_rank", engine.max_lora_rank, same("--max_lora_rank", *in_programs))
    if "lora" not in engine.plugins:
        # Without its plugin an engine takes no adapters. Its type is the model's.
        yield _plugin("engine.max_lora_rank", "lora", "auto")
    for key, options in LORA.items():
        if value := getattr(engine.lora, key):
            mappings = tuple(it for option in options for it in same(option, *in_programs))
            yield OptionRequest(f"engine.lora.{key}", value, mappings)


DRAFT_LENGTH = "--max_draft_len"


def _speculative(job: JobFile) -> Iterator[OptionRequest]:
    wanted = job.engine.speculative
    if wanted is None:
        return
    modes = {EXTERNAL: EXTERNAL, "lookahead": "lookahead_decoding"}
    known = same("--speculative_decoding_mode", "build", translate=modes)
    # 0.9 knows a target model by its draft length alone.
    needed = wanted.mode != EXTERNAL or wanted.max_draft_len is None
    yield OptionRequest("engine.speculative.mode", wanted.mode, known, needed=needed)
    if wanted.mode == EXTERNAL and job.engine.paged_context_fmha is None:
        yield OptionRequest("engine.speculative.mode", True, same("--use_paged_context_fmha", "build"))
    if wanted.max_draft_len is not None:
        lengths = same(DRAFT_LENGTH, "build", "build_py")
        yield OptionRequest("engine.speculative.max_draft_len", wanted.max_draft_len, lengths)


# Quantization -------------------------------------------------------------------------

Tool = Literal["convert", "quantize"]
_CONVERT_OR_BUILD: tuple[Role, ...] = ("convert", "build_py")

QSERVE = ("w4a8_qserve_per_group", "w4a8_qserve_per_channel")
"""QServe's methods (examples/llama/README.md of 0.15, 'w4aINT8 quantization (QServe)')."""
_CONVERT_ONLY = ("int8_wo", "int4_wo", "int4_gptq", "fp8_rowwise", *QSERVE)
"""Methods that need no samples: for these ``quantize.py`` has no format, or is not needed."""
BEFORE_BUILD_PY: Mapping[str, str] = {"fp8": "--quantized_fp8_model_path", "int4_awq": "--quant_ckpt_path"}
"""Methods for which ``quantize.py`` runs before ``build.py``, and the option that names its file."""
WITH_SCALES = "--ft_model_dir"
"""Option of ``build.py`` for a folder of weights with int8 scales."""
CONVERTED = ("--quant_ckpt_path", "--modelopt_quant_ckpt_path", "--ammo_quant_ckpt_path")
"""Options of ``convert_checkpoint.py`` for weights that are quantized already; the tool was renamed twice."""

_Setting = tuple[tuple[OptionMapping, ...], Any, bool]
"""Options, their value, and whether one of them is needed."""


def _flag(option: str, *, needed: bool = True) -> _Setting:
    return same(option, *_CONVERT_OR_BUILD), True, needed


def _weights_only(precision: str) -> tuple[_Setting, ...]:
    options = ("--weight_only_precision", "--use-weight-only-with-precision")
    mappings = tuple(OptionMapping(role, option) for role in _CONVERT_OR_BUILD for option in options)
    return _flag("--use_weight_only", needed=False), (mappings, precision, True)


_PER_GROUP = _flag("--per_group", needed=False)
_BY_CONVERT: Mapping[str, tuple[_Setting, ...]] = {
    "int8_wo": _weights_only("int8"),
    "int4_wo": _weights_only("int4"),
    "int4_gptq": (*_weights_only("int4_gptq"), _PER_GROUP),
    "fp8_rowwise": (_flag("--use_fp8_rowwise"),),
    "w4a8_qserve_per_group": (_flag("--use_qserve"), _PER_GROUP),
    "w4a8_qserve_per_channel": (_flag("--use_qserve"),),
    "fp8": ((same("--use_fp8", "convert") + same("--enable_fp8", "build_py"), True, True),),
    "nvfp4": ((same("--use_nvfp4", "convert"), True, True),),
    # No program of such a toolchain does these: the problem tells which one does, and since when.
    "w4a8_awq": ((same("--qformat", "quantize"), "w4a8_awq", True),),
    "auto": ((same("--autoq_format", "quantize"), "auto", True),),
}
"""Options of ``convert_checkpoint.py`` for a method; ``build.py`` has those of weights alone, too."""
_IN_BUILD_PY: Mapping[str | None, Mapping[str, Any]] = {
    "fp8": {"--enable_fp8": True},
    "int4_awq": {"--use_weight_only": True, "--weight_only_precision": "int4_awq", "--per_group": True},
    "int8_sq": {"--use_smooth_quant": True},
}
"""Options of ``build.py`` for weights that another program has quantized."""
DETAILS: Mapping[str, tuple[OptionMapping, ...]] = {
    "per_token": same("--per_token", *_CONVERT_OR_BUILD),
    "per_channel": same("--per_channel", *_CONVERT_OR_BUILD),
    "group_size": same("--group_size", *_CONVERT_OR_BUILD),
    "calibration_dataset": same("--calib_dataset", "quantize", "convert"),
    "calibration_size": same("--calib_size", "quantize", "convert"),
    "batch_size": same("--batch_size", "quantize"),
    "awq_block_size": same("--awq_block_size", "quantize"),
    "auto_bits": same("--auto_quantize_bits", "quantize"),
}
"""Keys of ``engine.quantization`` whose options do not depend on the method."""


def quantization_tool(quantization: Quantization, *, by_build_py: bool) -> Tool | None:
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
    return "convert" if method in _CONVERT_ONLY else "quantize"


def is_calibrated(quantization: Quantization, chosen: Tool | None) -> bool:
    """Whether the chosen program needs calibration samples."""
    if chosen is None:
        return False
    if quantization.kv_cache is not None and (chosen == "quantize" or quantization.kv_cache == "int8"):
        return True
    if quantization.method == "nvfp4" and chosen == "convert":
        return False  # it reads weights that are quantized already
    return quantization.method not in (None, "full_prec", *_CONVERT_ONLY)


def needs_checkpoint(quantization: Quantization, options: Collection[str]) -> bool:
    """Whether the method needs weights that are quantized already, in a place of their own.

    Qwen's ``convert_checkpoint.py`` has none of the ``options`` for it: it reads GPTQ's weights from the
    model's folder (examples/qwen/README.md, 'INT4-GPTQ').
    """
    of_checkpoint = {mapping.option for mapping in _checkpoint(quantization)}
    return quantization.method in ("int4_gptq", *QSERVE) and not of_checkpoint.isdisjoint(options)


def _checkpoint(quantization: Quantization) -> tuple[OptionMapping, ...]:
    """Options for weights that are quantized already."""
    in_build_py = {**BEFORE_BUILD_PY, "int4_gptq": "--quant_ckpt_path"}
    converted = (OptionMapping("convert", option) for option in CONVERTED)
    return (*converted, OptionMapping("build_py", in_build_py.get(quantization.method or "", WITH_SCALES)))


def _quantization(quantization: Quantization, *, by_build_py: bool) -> Iterator[OptionRequest]:
    chosen = quantization_tool(quantization, by_build_py=by_build_py)
    if chosen is None:
        return
    method, kind = quantization.method, quantization.kv_cache
    settings: Sequence[_Setting] = _BY_CONVERT.get(str(method), ())
    if chosen == "quantize" and method == "auto":
        settings = [(same("--autoq_format", "quantize"), ",".join(quantization.auto_formats), True)]
    elif chosen == "quantize":
        settings = [(same("--qformat", "quantize"), method or "full_prec", True)]
    elif method == "int8_sq":
        smoothing = (
            0.5 if quantization.smoothquant is None else quantization.smoothquant
        )  # upstream's example
        done = same("--use_smooth_quant", "build_py", translate=lambda *_: True)
        settings = [(same("--smoothquant", "convert", "prepare") + done, smoothing, True)]
    elif method == "nvfp4" and quantization.tool != "convert":
        settings = [(same("--qformat", "quantize"), method, True)]
    for mappings, value, needed in settings:
        yield OptionRequest("engine.quantization.method", value, mappings, needed=needed)
    if kind is not None:
        mappings = same(f"--{kind}_kv_cache", *_CONVERT_OR_BUILD, translate={kind: True})
        if not by_build_py:
            mappings = same("--kv_cache_dtype", "quantize") + mappings
        yield OptionRequest("engine.quantization.kv_cache", kind, mappings)
    if by_build_py:
        for option, value in _IN_BUILD_PY.get(method, {}).items():
            yield OptionRequest("engine.quantization.method", value, same(option, "build_py"))
        if kind == "int8":
            scales = same("--calibrate-kv-cache", "prepare")
            yield OptionRequest("engine.quantization.kv_cache", True, scales, needed=False)
    for key, mappings in {**DETAILS, "checkpoint": _checkpoint(quantization)}.items():
        value = getattr(quantization, key)
        if value is not None and value is not False:
            yield OptionRequest(f"engine.quantization.{key}", value, mappings)
