"""The keys of ``engine`` as options of upstream's programs: a table, and the keys that depend on other keys.

The table lists, for each key, the options that have carried it in any release, in the order of preference.
Sources: the lists of options in ``releases/data``, each with its own source; the README files of
examples/quantization and examples/llama of 0.7, 0.9, 0.15 and 0.16, with their ``quantize.py`` and
``convert_checkpoint.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from trtllm_hpc.config.engine import Engine, Quantization
from trtllm_hpc.errors import TrtllmHpcError
from trtllm_hpc.tensorrt_llm.releases.programs import Program, ProgramOption

Role = Literal["build_py", "prepare", "convert", "quantize", "build"]
"""Role of a program in a toolchain; ``engine.options`` has the same names, except ``prepare``."""
OMIT: Any = object()
"""Marks a value that is expressed by omitting the option."""


class NotExpressible(TrtllmHpcError):
    """A value that no option can carry in this release; the message follows the name of the key."""


Translate = Callable[[Any, ProgramOption, Program, Engine], Any]
"""Returns the option's value for a key's value; ``None`` if the option cannot carry it.

The engine's ``dtype`` is never ``auto``, but ``None`` if the type is not known without the model's
``config.json``.
"""


@dataclass(frozen=True)
class OptionMapping:
    """An option of a program, and the translation of the key's value to the option's value."""

    role: Role
    option: str
    translate: Mapping[Any, Any] | Translate | None = None
    """Translation of the key's value; a mapping need not contain every value. ``None``: the same value."""

    def value(self, value: Any, option: ProgramOption, program: Program, engine: Engine) -> Any:
        """Return the option's value; ``None`` if the option cannot carry the key's value."""
        if self.translate is None:
            return value
        if callable(self.translate):
            return self.translate(value, option, program, engine)
        return self.translate.get(value)


def same(
    option: str, *roles: Role, translate: Mapping[Any, Any] | Translate | None = None
) -> tuple[OptionMapping, ...]:
    """Return a mapping to the option of the same name in each program of ``roles``."""
    return tuple(OptionMapping(role, option, translate) for role in roles)


@dataclass(frozen=True)
class EngineKey:
    """A key of the engine section and the options that carry it."""

    key: str
    """Dotted name of the key below ``engine``."""
    mappings: tuple[OptionMapping, ...]
    """Options that can carry the key, in the order of preference."""
    in_every_program: bool = False
    """Whether every program with an option for the key gets it; otherwise only the first program does."""
    neutral: Any = None
    """A value that needs no option, because every release behaves so without the option."""
    always: bool = False
    """Whether the neutral value is passed, too, if there is an option for it."""
    needed: bool = True
    """Whether a value other than the neutral one is an error if no program has an option for it."""


def argv(option: ProgramOption, value: Any) -> tuple[str, ...] | None:
    """Return an option as arguments, empty for a flag that is off; ``None`` if it cannot have the value."""
    if value is OMIT:
        return ()
    if value is None:
        return None
    if option.form == "flag":
        if not isinstance(value, bool) or (not value and option.default):
            return None
        return (option.name,) if value else ()
    items = list(value) if isinstance(value, list | tuple) else [value]
    if option.form != "list":
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


# Translation of values ----------------------------------------------------------------


def _output_len(value: Any, option: ProgramOption, program: Program, engine: Engine) -> int | None:
    """Return the length of the answer alone, which releases before 0.11 take."""
    prompt = engine.max_input_len
    if prompt is None:
        default = program.options.get("--max_input_len")
        prompt = default.default if default is not None and isinstance(default.default, int) else None
    if prompt is None:
        raise NotExpressible(
            f"becomes {option.name}, the length of the answer alone, in {program.name} {program.release}",
            hint="set engine.max_input_len too",
        )
    if value <= prompt:
        raise NotExpressible(
            f"leaves no room for an answer: without engine.max_input_len, {program.name} {program.release} "
            f"allows prompts of {prompt} tokens",
            hint=f"set it above {prompt}, or set engine.max_input_len",
        )
    return int(value) - prompt


def _model_dtype(value: Any, option: ProgramOption, program: Program, engine: Engine) -> str | None:
    """Return the type, with ``auto`` replaced by the model's type if the option does not know ``auto``."""
    if value != "auto" or "auto" in option.choices or option.default == "auto":
        return str(value)
    return engine.dtype


def _storage_type(value: Any, option: ProgramOption, program: Program, engine: Engine) -> str | None:
    """Return the type of prepared weights for ``build.py``: float16 for float16, float32 for other types."""
    dtype = _model_dtype(value, option, program, engine)
    if "fp16" not in option.choices:
        return dtype
    return "fp16" if dtype in (None, "float16") else "fp32"


def _plugin_value(value: Any, option: ProgramOption, program: Program, engine: Engine) -> Any:
    if option.form == "flag":
        return {"enable": True, "disable": False}.get(value)
    if value == "disable" and "disable" not in option.choices and not option.default:
        return OMIT
    return _model_dtype(value, option, program, engine) or "float16"


# The table ----------------------------------------------------------------------------


_BUILDERS: tuple[Role, ...] = ("build", "build_py")
"""Programs that build; a toolchain has one of them."""


def _plain(*keys: str) -> Iterator[EngineKey]:
    """Yield keys for which the build has an option of the same name."""
    return (EngineKey(key, same(f"--{key}", *_BUILDERS)) for key in keys)


_WORLD = same("--world_size", "build_py", "convert")
"""Number of ranks; programs that know only tensor parallelism have this option instead of ``--tp_size``."""
_ALL_LOGITS = same("--gather_all_token_logits", *_BUILDERS)

ENGINE_KEYS: Sequence[EngineKey] = (
    # The layout of the ranks.
    EngineKey("world_size", _WORLD, neutral=1, always=True, needed=False),
    EngineKey(
        "tensor_parallel",
        same("--tp_size", "build_py", "convert", "quantize")
        + same("--tensor-parallelism", "prepare")
        + _WORLD,
        in_every_program=True,
        neutral=1,
        always=True,
    ),
    EngineKey("pipeline_parallel", same("--pp_size", "build_py", "convert", "quantize"), neutral=1),
    EngineKey("context_parallel", same("--cp_size", "convert", "quantize"), neutral=1),
    EngineKey("moe_tensor_parallel", same("--moe_tp_size", "convert", "quantize")),
    EngineKey("moe_expert_parallel", same("--moe_ep_size", "convert", "quantize")),
    # Numbers.
    EngineKey(
        "dtype",
        same("--dtype", "build_py", "convert", "quantize", translate=_model_dtype)
        + same("--storage-type", "prepare", translate=_storage_type),
        in_every_program=True,
        neutral="auto",
        always=True,
    ),
    *_plain("max_batch_size", "max_input_len"),
    EngineKey(
        "max_seq_len",
        same("--max_seq_len", "build") + same("--max_output_len", *_BUILDERS, translate=_output_len),
    ),
    *_plain("max_num_tokens", "opt_num_tokens", "max_beam_width"),
    *_plain("max_prompt_embedding_table_size", "tokens_per_block"),
    # Logits in answers.
    *(
        EngineKey(key, same(f"--{key}", *_BUILDERS) + _ALL_LOGITS, neutral=False)
        for key in ("gather_context_logits", "gather_generation_logits")
    ),
    # Kernels and caches.
    EngineKey(
        "kv_cache_type",
        same("--kv_cache_type", "build")
        + same("--paged_kv_cache", *_BUILDERS, translate={"paged": True, "continuous": False}),
    ),
    EngineKey("inflight_batching", same("--use_inflight_batching", "build_py")),
    *_plain("remove_input_padding"),
    *(
        EngineKey(key, same(f"--{key}", "build") + same(f"--enable_{key}", *_BUILDERS))
        for key in ("context_fmha", "context_fmha_fp32_acc")
    ),
    EngineKey("paged_context_fmha", same("--use_paged_context_fmha", *_BUILDERS)),
    *_plain("multi_block_mode"),
    EngineKey("hidden_act", same("--hidden_act", "build_py")),
    EngineKey(
        "workers",
        same("--workers", "convert", "build")
        + same("--parallel_build", "build_py", translate=lambda value, *_: value > 1)
        + same("--processes", "prepare"),
        in_every_program=True,
    ),
)


_TAKES_LORA: tuple[Role, ...] = ("build", "convert", "build_py")
"""Programs with options for LoRA: in 0.8 the conversion, later the build."""

Requests = Iterator[tuple[EngineKey, Any]]
"""Keys and values, each to be passed as an option."""


def requests(engine: Engine) -> Requests:
    """Yield each key of ``engine`` that the job file sets."""
    for row in ENGINE_KEYS:
        value = getattr(engine, row.key)
        is_neutral = value == row.neutral and type(value) is type(row.neutral)
        if value is not None and (row.always or not is_neutral):
            yield replace(row, needed=row.needed and not is_neutral), value
    for name, setting in engine.plugins.items():
        yield _plugin(f"plugins.{name}", name), setting
    yield from _quantization(engine.quantization)
    if engine.max_lora_rank:
        yield EngineKey("max_lora_rank", same("--max_lora_rank", *_TAKES_LORA)), engine.max_lora_rank
        if "lora" not in engine.plugins:
            # An engine takes adapters only with the LoRA plugin, in the model's type.
            yield _plugin("max_lora_rank", "lora"), "auto"
        if modules := engine.lora.target_modules:
            yield EngineKey("lora.target_modules", same("--lora_target_modules", *_TAKES_LORA)), modules


def _plugin(key: str, name: str) -> EngineKey:
    """Return the key of a TensorRT plugin; upstream's options have names with and without ``use_``."""
    named = same(f"--{name}_plugin", "build", translate=_plugin_value)
    return EngineKey(key, named + same(f"--use_{name}_plugin", "build", "build_py", translate=_plugin_value))


# Quantization -------------------------------------------------------------------------

_CONVERT_OR_BUILD: tuple[Role, ...] = ("convert", "build_py")
"""Programs that quantize weights: ``build.py`` in releases that build with it, otherwise the conversion."""
CONVERTED = ("--quant_ckpt_path", "--modelopt_quant_ckpt_path", "--ammo_quant_ckpt_path")
"""Options of ``convert_checkpoint.py`` for weights that are quantized already; the option was renamed
twice."""
_PRECISIONS = {"int8_wo": "int8", "int4_wo": "int4", "int4_gptq": "int4_gptq"}


def by_quantize(quantization: Quantization) -> bool:
    """Return whether ``quantize.py`` converts the model, and quantizes it with calibration samples."""
    method = quantization.method
    return method not in (*_PRECISIONS, "fp8_rowwise") and (method or quantization.kv_cache) is not None


def _quantization(quantization: Quantization) -> Requests:
    method, kind, key = quantization.method, quantization.kv_cache, "quantization.method"
    if by_quantize(quantization):
        yield EngineKey(key, same("--qformat", "quantize")), method or "full_prec"
    elif method == "fp8_rowwise":
        yield EngineKey(key, same("--use_fp8_rowwise", "convert")), True
    elif method is not None:
        yield EngineKey(key, same("--use_weight_only", *_CONVERT_OR_BUILD), needed=False), True
        options = ("--weight_only_precision", "--use-weight-only-with-precision")
        precision = tuple(OptionMapping(role, option) for role in _CONVERT_OR_BUILD for option in options)
        yield EngineKey(key, precision), _PRECISIONS[method]
        if method == "int4_gptq":
            yield EngineKey(key, same("--per_group", *_CONVERT_OR_BUILD), needed=False), True
    if kind is not None:
        mappings = same("--kv_cache_dtype", "quantize")
        mappings += same(f"--{kind}_kv_cache", "convert", translate={kind: True})
        yield EngineKey("quantization.kv_cache", mappings), kind
    for name, mappings in (
        ("calibration_dataset", same("--calib_dataset", "quantize", "convert")),
        ("calibration_size", same("--calib_size", "quantize", "convert")),
        ("checkpoint", tuple(OptionMapping("convert", option) for option in CONVERTED)),
    ):
        if (value := getattr(quantization, name)) is not None:
            yield EngineKey(f"quantization.{name}", mappings), value
