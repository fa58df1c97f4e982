"""LoRA adapters in the form that clients send them in."""

from __future__ import annotations

from pathlib import PurePosixPath

from trtllm_hpc.plan.backends.steps import Making
from trtllm_hpc.runtime.engine_cache.recipe import Argument, BuildStep, Placeholder
from trtllm_hpc.tensorrt_llm.command_lines.lora import PROGRAM


def lora_step(making: Making) -> BuildStep:
    """``hf_lora_convert.py`` for each adapter, into a folder of the adapter's name."""
    command = making.release.command(PROGRAM, making.route.family.examples)
    # Rules of the configuration have judged that the release has it, and that the names differ.
    file = command.file if command is not None and command.file is not None else PROGRAM
    commands = tuple(_convert(making, file, adapter) for adapter in making.job.engine.lora.adapters)
    return BuildStep("lora", commands, inputs=making.folders(*commands), identity=making.identity())


def _convert(making: Making, file: str, adapter: str) -> tuple[Argument, ...]:
    return (
        *making.script(file),
        *("-i", adapter),
        *("-o", Placeholder("output", f"/{PurePosixPath(adapter).name}")),
        *("--storage-type", making.job.engine.lora.storage_type),
        *making.job.engine.options.lora,
    )
