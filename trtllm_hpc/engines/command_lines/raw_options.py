"""``engine.options``: further arguments for upstream's programs, checked against the release's options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

from trtllm_hpc.config.diagnostics import in_job, nearest, shown
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.engines.command_lines.option_table import LORA, ROWS, Role
from trtllm_hpc.engines.command_lines.quantization import BEFORE_BUILD_PY, CONVERTED, DETAILS, WITH_SCALES
from trtllm_hpc.engines.command_lines.speculative import DRAFT_LENGTH
from trtllm_hpc.engines.command_lines.toolchain import Toolchain
from trtllm_hpc.errors import Diagnostic
from trtllm_hpc.tensorrt_llm.releases.commands import Command, Option
from trtllm_hpc.tensorrt_llm.releases.release import option_lifetime

LORA_PROGRAM = "hf_lora_convert.py"
"""Converts a Hugging Face adapter into the arrays that requests carry; no part of a toolchain."""
RAW_ROLES: Sequence[Role] = tuple(role for role in get_args(Role) if role != "prepare")

_Fault = tuple[int, str, str]
"""The index of an argument, what is wrong with it, and a hint."""


def raw_argv(job: JobFile, role: Role) -> tuple[str, ...]:
    """The further arguments for a program."""
    return tuple(getattr(job.engine.options, role)) if role in RAW_ROLES else ()


def raw_problems(job: JobFile, toolchain: Toolchain) -> Iterator[Diagnostic]:
    """Yield what the release's programs would refuse, and what a key of the job file sets already."""
    for role in RAW_ROLES:
        given = raw_argv(job, role)
        command = toolchain.programs.get(role)
        if given and command is None:
            programs = ", then ".join(each.name for each in toolchain.programs.values())
            runs = f"TensorRT-LLM {toolchain.release.version} runs {programs}"
            message = f"are for a program that has no part in this: {runs}"
            hint = "remove them, or write them under the program that they are for"
            yield in_job("release", f"engine.options.{role}", message, hint)
        elif command is not None:
            yield from program_problems(given, role, command, toolchain.family.examples)


def program_problems(given: Sequence[str], role: str, command: Command, family: str) -> Iterator[Diagnostic]:
    """The same for one program."""
    for index, message, hint in _checked(given, role, command, family):
        yield in_job("release", f"engine.options.{role}[{index}]", message, hint, given[index])


def raw_notes(job: JobFile, toolchain: Toolchain) -> Iterator[str]:
    """Yield a note for each argument that the release takes and ignores."""
    for role, command in toolchain.programs.items():
        for word in raw_argv(job, role):
            option = command.find(word.partition("=")[0])
            if option is not None and option.ignored:
                yield f"engine.options.{role}: {word} does nothing. {option.ignored}"


def _checked(given: Sequence[str], role: str, command: Command, family: str) -> Iterator[_Fault]:
    open_option: Option | None = None
    values = 0
    for index, word in enumerate(given):
        if not word.startswith("-") or word[1:2].isdigit():
            values += 1
            yield from _value(index, word, open_option, values)
            continue
        if open_option is not None and open_option.form != "flag" and values == 0:
            yield index - 1, f"{open_option.name} needs a value", "add the value"
        name, equals, value = word.partition("=")
        open_option, values = command.find(name), 0
        yield from _option(index, name, role, command, family)
        if equals and open_option is not None:
            values = 1
            yield from _value(index, value, open_option, values)
    if open_option is not None and open_option.form != "flag" and values == 0:
        yield len(given) - 1, f"{open_option.name} needs a value", "add the value"


def _option(index: int, name: str, role: str, command: Command, family: str) -> Iterator[_Fault]:
    option = command.find(name)
    if option is None:
        known = option_lifetime(command.name, name, command.family or family)
        history = f": {known}" if known else ""
        message = f"{command.name} {command.release} has no option {shown(name)}{history}"
        yield index, message, _instead(name, command)
        return
    key = managing_key(role, option.name)
    if key is not None:
        yield index, f"{name} is set by the toolkit itself", key


def _instead(name: str, command: Command) -> str:
    history = command.histories.get(name)
    if history is not None and history.replaced_by:
        return f"write {history.replaced_by} instead"
    near = nearest(name, command.options)
    shows = f"trtllm-hpc versions show {command.release} {command.name}"
    return f"did you mean {near}? '{shows}' lists all" if near else f"'{shows}' lists those that it has"


def _value(index: int, word: str, option: Option | None, count: int) -> Iterator[_Fault]:
    if option is None:
        if count == 1 and index == 0:
            yield index, f"{shown(word)} belongs to no option", "begin with an option, e.g. --log_level"
        return
    if option.form == "flag" or (count > 1 and option.form != "list"):
        yield index, f"{shown(word)} is one word more than {option.name} takes", "remove it"
    elif option.choices and word not in option.choices:
        hint = f"write one of {', '.join(option.choices)}"
        yield index, f"{option.name} does not take {shown(word)}", hint


_FOLDERS: Mapping[str, str] = {
    **dict.fromkeys(("--model_dir", "--in-file"), "set model.path"),
    **dict.fromkeys(
        ("--out-dir", "--export_path"), "leave it out: the checkpoint goes into the cache of engines"
    ),
    "--output_dir": "leave it out: the engine goes into the cache of engines",
    "--checkpoint_dir": "leave it out: it is what the step before has written",
    "--gpus_per_node": "leave it out: it comes from the cluster profile and serve.nodes",
    "--model_type": "set model.family",
}
_METHODS = (
    *("--use_weight_only", "--weight_only_precision", "--per_group", "--qformat", "--use_fp8_rowwise"),
    *("--use_nvfp4", "--use_qserve", "--use_fp8", "--enable_fp8", "--use_smooth_quant"),
)
_OTHERS: Mapping[str, Sequence[str]] = {
    "quantization.method": _METHODS,
    "quantization.auto_formats": ("--autoq_format",),
    "quantization.smoothquant": ("--smoothquant",),
    "quantization.kv_cache": ("--int8_kv_cache", "--fp8_kv_cache", "--kv_cache_dtype"),
    "quantization.checkpoint": (*CONVERTED, *BEFORE_BUILD_PY.values(), WITH_SCALES),
    **{f"quantization.{key}": [it.option for it in mappings] for key, mappings in DETAILS.items()},
    "max_lora_rank": ("--max_lora_rank",),
    **{f"lora.{key}": options for key, options in LORA.items()},
    "speculative.mode": ("--speculative_decoding_mode",),
    "speculative.max_draft_len": (DRAFT_LENGTH,),
}
"""Keys below ``engine`` that have no row in the table, and their options."""
_KEYS_OF_OPTIONS: Mapping[tuple[str, str], str] = {
    (mapping.role, mapping.option): row.key for row in reversed(ROWS) for mapping in row.mappings
}


def managing_key(role: str, option: str) -> str | None:
    """What to do instead of writing this option by hand; ``None`` if nothing else sets it."""
    if role == "lora" and option == "--storage-type":
        return "set engine.lora.storage_type"
    if role == "lora" and option == "--in-file":
        return "set engine.lora.adapters"
    if option in _FOLDERS:
        return _FOLDERS[option]
    key = _KEYS_OF_OPTIONS.get((role, option))
    key = key or next((key for key, options in _OTHERS.items() if option in options), None)
    if key is not None:
        return f"set engine.{key}"
    plugin = re.fullmatch(r"--(?:use_)?([a-z0-9_]+)_plugin", option)
    return f"set engine.plugins.{plugin[1]}" if plugin is not None else None
