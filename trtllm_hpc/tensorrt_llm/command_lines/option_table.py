"""The table: each key of the job file and the options that have carried it.

Sources: the lists of options in ``versions/data`` (each with its own source);
what an option means is told by upstream's help texts and examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtllm_hpc.config.engine import Plugin
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.tensorrt_llm.command_lines.option_request import (
    SILENT,
    Context,
    Role,
    Say,
    Translate,
    Unsayable,
    Wish,
)
from trtllm_hpc.tensorrt_llm.releases import Command, Option

NO_PLUGIN = "disable"


def output_len(value: Any, option: Option, command: Command, context: Context) -> int | None:
    """Prompt and answer together as the answer alone, which releases before 0.11 ask for."""
    prompt = context.max_input_len
    if prompt is None:
        default = command.options.get("--max_input_len")
        prompt = default.default if default is not None and isinstance(default.default, int) else None
    if prompt is None:
        raise Unsayable(
            f"is written as {option.name} in {command.name} {command.release}, without the prompt",
            "set engine.max_input_len too",
        )
    if value <= prompt:
        raise Unsayable(
            f"leaves no room for an answer: without engine.max_input_len a prompt of {command.name} "
            f"{command.release} may have {prompt} tokens",
            f"set it above {prompt}, or set engine.max_input_len",
        )
    return int(value) - prompt


def model_dtype(value: Any, option: Option, command: Command, context: Context) -> str | None:
    """``auto`` as the type itself, where the release wants it told."""
    if value != "auto" or "auto" in option.choices or option.default == "auto":
        return str(value)
    return context.dtype


def plugin_dtype(value: Any, option: Option, command: Command, context: Context) -> str:
    """``auto`` for a plugin, or the model's type where the plugin does not know ``auto``."""
    if value != "auto" or "auto" in option.choices or option.default == "auto":
        return str(value)
    return context.dtype or "float16"


@dataclass(frozen=True)
class Row:
    """A key and its spellings."""

    key: str
    ways: tuple[Say, ...]
    everywhere: bool = False
    neutral: Any = None
    """A value that need not be said, since all releases do so by themselves."""
    always: bool = False
    """Whether the neutral value is written all the same where there is an option for it."""
    needed: bool = True
    """Whether it is an error that no program can be told a value that is not the neutral one."""


def row(key: str, *ways: Say, **kind: Any) -> Row:
    """A row of the engine section; ``kind`` is what else a ``Row`` has."""
    return Row(f"engine.{key}", ways, **kind)


def same(option: str, *roles: Role, means: Mapping[Any, Any] | Translate | None = None) -> tuple[Say, ...]:
    """One option of that name in several programs."""
    return tuple(Say(role, option, means) for role in roles)


WORLD = (
    Say("build_py", "--world_size"),
    Say("convert", "--world_size"),
    Say("convert", "--world-size"),
)
"""All ranks; programs that know tensor parallelism only have this instead of ``--tp_size``."""
PAGED: Mapping[str, bool] = {"paged": True, "continuous": False}

ROWS: Sequence[Row] = (
    # The layout of the ranks.
    row("world_size", *WORLD, neutral=1, always=True, needed=False),
    row(
        "tensor_parallel",
        *same("--tp_size", "build_py", "convert", "quantize"),
        Say("prepare", "--tensor-parallelism"),
        *WORLD,
        everywhere=True,
        neutral=1,
        always=True,
    ),
    row("pipeline_parallel", *same("--pp_size", "build_py", "convert", "quantize"), neutral=1),
    row("context_parallel", *same("--cp_size", "convert", "quantize"), neutral=1),
    row("moe_tensor_parallel", *same("--moe_tp_size", "convert", "quantize")),
    row("moe_expert_parallel", *same("--moe_ep_size", "convert", "quantize")),
    # Numbers.
    row(
        "dtype",
        *same("--dtype", "build_py", "convert", "quantize", means=model_dtype),
        Say("prepare", "--storage-type", model_dtype),
        everywhere=True,
        neutral="auto",
        always=True,
    ),
    row("max_batch_size", *same("--max_batch_size", "build_py", "build")),
    row("max_input_len", *same("--max_input_len", "build_py", "build")),
    row(
        "max_seq_len",
        Say("build", "--max_seq_len"),
        Say("build", "--max_output_len", output_len),
        Say("build_py", "--max_output_len", output_len),
    ),
    row("max_num_tokens", *same("--max_num_tokens", "build_py", "build")),
    row("opt_num_tokens", *same("--opt_num_tokens", "build_py", "build")),
    row("max_beam_width", *same("--max_beam_width", "build_py", "build")),
    row("max_encoder_input_len", *same("--max_encoder_input_len", "build_py", "build")),
    row(
        "max_prompt_embedding_table_size",
        *same("--max_prompt_embedding_table_size", "build_py", "build"),
    ),
    row("tokens_per_block", *same("--tokens_per_block", "build_py", "build")),
    # What an answer may carry besides its tokens.
    row(
        "gather_context_logits",
        *same("--gather_context_logits", "build", "build_py"),
        *same("--gather_all_token_logits", "build", "build_py"),
        neutral=False,
    ),
    row(
        "gather_generation_logits",
        *same("--gather_generation_logits", "build", "build_py"),
        *same("--gather_all_token_logits", "build", "build_py"),
        neutral=False,
    ),
    # How it is computed.
    row(
        "kv_cache",
        Say("build", "--kv_cache_type"),
        *same("--paged_kv_cache", "build", "build_py", means=PAGED),
    ),
    row("inflight_batching", Say("build_py", "--use_inflight_batching")),
    row("remove_input_padding", *same("--remove_input_padding", "build_py", "build")),
    row(
        "context_fmha",
        Say("build", "--context_fmha"),
        *same("--enable_context_fmha", "build", "build_py"),
    ),
    row(
        "context_fmha_fp32_acc",
        Say("build", "--context_fmha_fp32_acc"),
        *same("--enable_context_fmha_fp32_acc", "build", "build_py"),
    ),
    row("paged_context_fmha", *same("--use_paged_context_fmha", "build", "build_py")),
    row("fp8_context_fmha", *same("--use_fp8_context_fmha", "build", "build_py")),
    row("multi_block_mode", *same("--multi_block_mode", "build", "build_py")),
    row("custom_all_reduce", *same("--use_custom_all_reduce", "build", "build_py")),
    row("fused_mlp", *same("--use_fused_mlp", "build", "build_py", "convert")),
    row("reduce_fusion", Say("build", "--reduce_fusion")),
    row("multiple_profiles", Say("build", "--multiple_profiles")),
    row("weight_streaming", Say("build", "--weight_streaming")),
    row("weight_sparsity", Say("build", "--weight_sparsity")),
    row("strongly_typed", *same("--strongly_typed", "build", "build_py")),
    row("embedding_sharing", *same("--use_embedding_sharing", "convert", "build_py")),
    row("parallel_embedding", *same("--use_parallel_embedding", "convert", "build_py")),
    row("hidden_act", Say("build_py", "--hidden_act")),
    row(
        "workers",
        *same("--workers", "convert", "build"),
        Say("build_py", "--parallel_build", lambda value, *_: value > 1),
        Say("prepare", "--processes"),
        everywhere=True,
    ),
)


def rows(job: JobFile) -> Iterator[Wish]:
    """The wishes of the table's rows, of what the job file sets."""
    for each in ROWS:
        value = _get(job, each.key)
        is_neutral = value == each.neutral and type(value) is type(each.neutral)
        if value is None or (is_neutral and not each.always):
            continue
        yield Wish(each.key, value, each.ways, each.everywhere, needed=each.needed and not is_neutral)


def _get(job: JobFile, key: str) -> Any:
    value: Any = job
    for part in key.split("."):
        value = getattr(value, part)
    return value


def plugins(job: JobFile) -> Iterator[Wish]:
    """``engine.plugins``, named as upstream does with and without ``use_``."""
    for name, value in job.engine.plugins.items():
        yield plugin(f"engine.plugins.{name}", name, value)


def plugin(key: str, name: str, value: Plugin) -> Wish:
    """A TensorRT plugin, on with a type or off."""
    ways = (
        Say("build", f"--{name}_plugin", _plugin_value),
        *same(f"--use_{name}_plugin", "build", "build_py", means=_plugin_value),
    )
    return Wish(key, value, ways)


def _plugin_value(value: Any, option: Option, command: Command, context: Context) -> Any:
    if option.form == "flag" or (option.form == "switch" and not option.choices):
        return {"enable": True, NO_PLUGIN: False}.get(value)
    if value == NO_PLUGIN and NO_PLUGIN not in option.choices and not option.default:
        return SILENT
    return plugin_dtype(value, option, command, context)
