"""LoRA: what the engine must be built with so that requests may name adapters."""

from __future__ import annotations

from collections.abc import Iterator

from trtllm_hpc.config.job import JobFile
from trtllm_hpc.tensorrt_llm.command_lines.option_request import Say, Wish
from trtllm_hpc.tensorrt_llm.command_lines.option_table import plugin

PROGRAM = "hf_lora_convert.py"
"""Makes a Hugging Face adapter into the arrays that requests carry."""


def wishes(job: JobFile) -> Iterator[Wish]:
    """Rank, modules and the plugin, where ``engine.max_lora_rank`` is not 0."""
    engine = job.engine
    if engine.max_lora_rank == 0:
        return
    yield Wish("engine.max_lora_rank", engine.max_lora_rank, _everywhere("--max_lora_rank"))
    if "lora" not in engine.plugins:
        # Without its plugin an engine takes no adapters. Its type is the model's.
        yield plugin("engine.max_lora_rank", "lora", "auto")
    lora = engine.lora
    if lora.target_modules:
        yield Wish("engine.lora.target_modules", lora.target_modules, _everywhere("--lora_target_modules"))
    if lora.directories:
        ways = (*_everywhere("--lora_dir"), *_everywhere("--hf_lora_dir"))
        yield Wish("engine.lora.directories", lora.directories, ways)
    if lora.checkpoint_source is not None:
        yield Wish("engine.lora.checkpoint_source", lora.checkpoint_source, _everywhere("--lora_ckpt_source"))


def _everywhere(option: str) -> tuple[Say, ...]:
    """In 0.8 the conversion was told, from 0.9 on the build."""
    return (Say("build", option), Say("convert", option), Say("build_py", option))
