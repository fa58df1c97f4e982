"""Defaults that changed silently between releases, written out."""

from __future__ import annotations

from collections.abc import Collection

from trtllm_hpc.tensorrt_llm.command_lines.argv import words
from trtllm_hpc.tensorrt_llm.command_lines.option_request import Context
from trtllm_hpc.tensorrt_llm.command_lines.toolchain import Program
from trtllm_hpc.tensorrt_llm.releases import Option

_TYPES = ("float16", "bfloat16", "float32")


NOT_OF_THE_ENGINE = ("--workers", "--log_level")
"""Options whose value makes no other engine."""


def written_out(program: Program, told: Collection[str], context: Context) -> dict[str, tuple[str, ...]]:
    """Options that nothing was said of and whose default differs in other releases, with the release's own.

    A plan then says what it relies on, and the same job file shows the
    difference when it is planned for another release.
    """
    found: dict[str, tuple[str, ...]] = {}
    for option in program.command.options.values():
        if option.changed is None or option.name in {*told, *NOT_OF_THE_ENGINE, *program.folders}:
            continue
        value = _follows_model(option, context)
        said = words(option, value) if value is not None else None
        if said:
            found[option.name] = said
    return found


def _follows_model(option: Option, context: Context) -> object:
    """The default, but the model's own type for a plugin's.

    Before 0.11 the attention plugin's default is float16 whatever the model is,
    and a plugin of another type than the model does not compute it.
    """
    if option.name.endswith("_plugin") and option.default in _TYPES and context.dtype is not None:
        return context.dtype
    return option.default
