"""A key of the job file with its value as options of upstream's programs: types, and the table of keys.

The table has, for each key, the options that have carried it in one release or another. Sources: the lists of
options in ``releases/data``, each with its own source; what an option means is in upstream's help texts and
examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trtllm_hpc.config.engine import Plugin
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.errors import TrtllmHpcError
from trtllm_hpc.tensorrt_llm.releases.commands import Command, Option

Role = Literal["build_py", "prepare", "convert", "quantize", "build"]
"""What a program does in a toolchain; ``engine.options`` has the same names."""

OMIT: Any = object()
"""A value that is expressed by leaving the option out."""


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
    """The option of that name in each of these programs."""
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
        if not isinstance(value, bool):
            return None
        if value:
            return (option.name,)
        return () if not option.default else None
    if option.form == "list":
        items = [value] if isinstance(value, str) or not isinstance(value, Sequence) else list(value)
        return (option.name, *map(str, items)) if items and _are_choices(option, items) else None
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool):
        value = "enable" if value else "disable"
        if value not in option.choices:
            return None
    if not isinstance(value, (str, int, float)):
        return None
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return (option.name, text) if _are_choices(option, [text]) else None


def _are_choices(option: Option, items: Sequence[Any]) -> bool:
    """Whether the option takes each item: one of its choices, or anything where it has none."""
    return not option.choices or all(str(item) in option.choices for item in items)


NO_PLUGIN = "disable"


def output_len(value: Any, option: Option, command: Command, context: Context) -> int | None:
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


def model_dtype(value: Any, option: Option, command: Command, context: Context) -> str | None:
    """``auto`` as the type itself, where the release's option does not know ``auto``."""
    if value != "auto" or "auto" in option.choices or option.default == "auto":
        return str(value)
    return context.dtype


def storage_type(value: Any, option: Option, command: Command, context: Context) -> str | None:
    """The type of prepared weights, as ``build.py`` reads them: float16 as such, all others as float32."""
    dtype = model_dtype(value, option, command, context)
    if "fp16" not in option.choices:
        return dtype
    return "fp16" if dtype in (None, "float16") else "fp32"


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


WORLD = same("--world_size", "build_py", "convert")
"""All ranks; programs that know tensor parallelism only have this instead of ``--tp_size``."""

ROWS: Sequence[Row] = (
    # The layout of the ranks.
    Row("world_size", WORLD, neutral=1, always=True, needed=False),
    Row(
        "tensor_parallel",
        same("--tp_size", "build_py", "convert", "quantize")
        + same("--tensor-parallelism", "prepare")
        + WORLD,
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
        same("--dtype", "build_py", "convert", "quantize", translate=model_dtype)
        + same("--storage-type", "prepare", translate=storage_type),
        in_every_program=True,
        neutral="auto",
        always=True,
    ),
    Row("max_batch_size", same("--max_batch_size", "build_py", "build")),
    Row("max_input_len", same("--max_input_len", "build_py", "build")),
    Row(
        "max_seq_len",
        same("--max_seq_len", "build") + same("--max_output_len", "build", "build_py", translate=output_len),
    ),
    Row("max_num_tokens", same("--max_num_tokens", "build_py", "build")),
    Row("opt_num_tokens", same("--opt_num_tokens", "build_py", "build")),
    Row("max_beam_width", same("--max_beam_width", "build_py", "build")),
    Row("max_prompt_embedding_table_size", same("--max_prompt_embedding_table_size", "build_py", "build")),
    Row("tokens_per_block", same("--tokens_per_block", "build_py", "build")),
    # What an answer may carry besides its tokens.
    Row(
        "gather_context_logits",
        same("--gather_context_logits", "build", "build_py")
        + same("--gather_all_token_logits", "build", "build_py"),
        neutral=False,
    ),
    Row(
        "gather_generation_logits",
        same("--gather_generation_logits", "build", "build_py")
        + same("--gather_all_token_logits", "build", "build_py"),
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


def rows(job: JobFile) -> Iterator[OptionRequest]:
    """Return a request for each row whose key the job file sets."""
    for each in ROWS:
        value = getattr(job.engine, each.key)
        is_neutral = value == each.neutral and type(value) is type(each.neutral)
        if value is None or (is_neutral and not each.always):
            continue
        needed = each.needed and not is_neutral
        yield OptionRequest(f"engine.{each.key}", value, each.mappings, each.in_every_program, needed)


def plugins(job: JobFile) -> Iterator[OptionRequest]:
    """Return the requests of ``engine.plugins``; upstream names them with and without ``use_``."""
    for name, value in job.engine.plugins.items():
        yield plugin(f"engine.plugins.{name}", name, value)


def plugin(key: str, name: str, value: Plugin) -> OptionRequest:
    """A TensorRT plugin, on with a type or off."""
    mappings = (
        OptionMapping("build", f"--{name}_plugin", _plugin_value),
        *same(f"--use_{name}_plugin", "build", "build_py", translate=_plugin_value),
    )
    return OptionRequest(key, value, mappings)


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
        yield plugin("engine.max_lora_rank", "lora", "auto")
    for key, options in LORA.items():
        value = getattr(engine.lora, key)
        if value:
            mappings = tuple(each for option in options for each in same(option, *in_programs))
            yield OptionRequest(f"engine.lora.{key}", value, mappings)


def _plugin_value(value: Any, option: Option, command: Command, context: Context) -> Any:
    if option.form == "flag":
        return {"enable": True, NO_PLUGIN: False}.get(value)
    if value == NO_PLUGIN and NO_PLUGIN not in option.choices and not option.default:
        return OMIT
    return model_dtype(value, option, command, context) or "float16"
