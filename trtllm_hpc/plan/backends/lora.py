"""LoRA adapters in the form that clients send them in."""

from __future__ import annotations

from pathlib import PurePosixPath

from trtllm_hpc.config.findings import shown
from trtllm_hpc.errors import RenderError
from trtllm_hpc.plan.backends.steps import Making
from trtllm_hpc.plan.model import BuildStep, Place, Word

PROGRAM = "hf_lora_convert.py"


def lora_step(making: Making) -> BuildStep:
    """``hf_lora_convert.py`` for each adapter, into a folder of the adapter's name.

    Raises:
        RenderError: the release has no such program, or two adapters share a name.
    """
    command = making.release.command(PROGRAM, making.route.family.examples)
    if command is None:
        raise RenderError(
            f"TensorRT-LLM {making.release.version} has no {PROGRAM}.",
            hint="remove engine.lora.adapters, or take another release",
        )
    adapters = making.job.engine.lora.adapters
    names = [PurePosixPath(adapter).name for adapter in adapters]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RenderError(
            f"Two adapters have the name {shown(twice[0])}, which names the folder of each.",
            hint="rename one of the folders in engine.lora.adapters",
        )
    file = command.file or PROGRAM
    commands = tuple(_convert(making, file, *each) for each in zip(adapters, names, strict=True))
    return BuildStep("lora", commands, identity=making.identity())


def _convert(making: Making, file: str, adapter: str, name: str) -> tuple[Word, ...]:
    lora = making.job.engine.lora
    return (
        *making.script(file),
        *("-i", adapter),
        *("-o", Place("output", f"/{name}")),
        *("--storage-type", lora.storage_type),
        *making.job.engine.options.lora,
    )
