"""Rules of LoRA, speculative decoding and quantization."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from trtllm_hpc.config.diagnostics import Diagnostics, in_job
from trtllm_hpc.engines.command_lines.quantization import needs_checkpoint, tool
from trtllm_hpc.engines.command_lines.raw_options import LORA_PROGRAM, program_problems
from trtllm_hpc.engines.command_lines.speculative import EXTERNAL
from trtllm_hpc.engines.facts import EngineFacts
from trtllm_hpc.tensorrt_llm.releases.release import option_lifetime

_TEXT_MODELS = ("ensemble", "tensorrt_llm_bls")
_LORA_INPUTS, _LORA_INPUTS_OF_TEXT = "0.9.0", "0.15.0"
"""Releases in which ``lora_task_id`` came to ``tensorrt_llm`` and to the models that take text (their
``config.pbtxt`` in tensorrtllm_backend). 0.8 took the weights with each request instead."""


def lora_names_modules(facts: EngineFacts) -> Diagnostics:
    """An engine for LoRA adapters has their modules and their rank."""
    job = facts.job
    if not facts.builds_engine:
        return
    lora, rank = job.engine.lora, job.engine.max_lora_rank
    if rank and not lora.target_modules and not lora.directories:
        hint = "set it, e.g. to [attn_q, attn_k, attn_v], or set engine.lora.directories"
        yield in_job("missing", "engine.lora.target_modules", "is needed beside engine.max_lora_rank", hint)
    if not rank and (lora.target_modules or lora.adapters or lora.directories):
        hint = "set engine.max_lora_rank to the adapters' rank, or remove engine.lora"
        yield in_job("conflict", "engine.lora", "is set, but engine.max_lora_rank is 0: built without", hint)


def adapters_can_be_asked_for(facts: EngineFacts) -> Diagnostics:
    """The models of the release have the inputs of the LoRA adapters that the companion names."""
    job, toolchain = facts.job, facts.toolchain
    if toolchain is None:
        return
    release, benchmark = toolchain.release, job.companion.benchmark
    for field in dict.fromkeys(field for field, _ in job.named_adapters):
        models = ["ensemble"]
        if benchmark is not None and field.startswith("companion.benchmark"):
            models = [*benchmark.models] or [benchmark.model or "ensemble"]
        for model in models:
            since = _LORA_INPUTS_OF_TEXT if model in _TEXT_MODELS else _LORA_INPUTS
            if not release.at_least(since):
                message = (
                    f"{model} of TensorRT-LLM {release.version} lacks its inputs, which came with {since}"
                )
                is_elsewhere = model in _TEXT_MODELS and release.at_least(_LORA_INPUTS)
                first = "measure tensorrt_llm (companion.benchmark.model)" if is_elsewhere else "remove it"
                hint = f"{first}, or use another release"
                yield in_job("release", field, message, hint, model)


def adapters_can_be_converted(facts: EngineFacts) -> Diagnostics:
    """The release has a program that converts adapters, and no two have the same folder name."""
    job, toolchain = facts.job, facts.toolchain
    adapters = job.engine.lora.adapters
    if toolchain is None or not adapters:
        return
    release, family = toolchain.release, toolchain.family.examples
    command = release.command(LORA_PROGRAM, family)
    if command is None:
        known = option_lifetime(LORA_PROGRAM, "--in-file", family)
        message = f"TensorRT-LLM {release.version} has no {LORA_PROGRAM}: {known}"
        yield in_job("release", "engine.lora.adapters", message, "remove it, or use another release")
        return
    names = [PurePosixPath(adapter).name for adapter in adapters]
    for name in sorted({name for name in names if names.count(name) > 1}):
        message = f"two adapters are called {name}, which names the folder of each"
        yield in_job("conflict", "engine.lora.adapters", message, "rename the folder of one")
    yield from program_problems(job.engine.options.lora, "lora", command, "")


def speculative_is_whole(facts: EngineFacts) -> Diagnostics:
    """Each mode of speculative decoding has the keys that it needs."""
    engine, wanted = facts.job.engine, facts.job.engine.speculative
    if wanted is None or not facts.builds_engine:
        return
    if wanted.max_draft_len is None:
        message = f"{wanted.mode} needs the maximum of draft tokens"
        yield in_job("missing", "engine.speculative.max_draft_len", message, "set it, e.g. to 10")
    if wanted.mode == EXTERNAL and engine.paged_context_fmha is False:
        message = f"{wanted.mode} computes prompts over the paged KV cache"
        hint = "leave engine.paged_context_fmha out"
        yield in_job("conflict", "engine.paged_context_fmha", message, hint, False)


def quantization_is_whole(facts: EngineFacts) -> Diagnostics:
    """The keys of a quantization fit its method."""
    wanted = facts.job.engine.quantization
    field = "engine.quantization"
    if wanted.method == "auto" and not wanted.auto_formats:
        yield in_job("missing", f"{field}.auto_formats", "auto needs formats", "e.g. [fp8, int4_awq]")
    if wanted.method == "auto" and wanted.auto_bits is None:
        yield in_job("missing", f"{field}.auto_bits", "auto needs a number of bits", "e.g. 5")
    if facts.toolchain is not None and wanted.checkpoint is None:
        options = [option for command in facts.toolchain.programs.values() for option in command.options]
        if needs_checkpoint(wanted, options):
            message = f"{wanted.method} needs weights that are quantized already"
            yield in_job("missing", f"{field}.checkpoint", message, "set it to their file or folder")
    for key, methods in _ONLY_WITH.items():
        value = getattr(wanted, key)
        if value not in (None, False, []) and wanted.method not in methods:
            message = f"is for {' and '.join(methods)} only"
            hint = f"remove it, or set {field}.method to {methods[0]}"
            yield in_job("conflict", f"{field}.{key}", message, hint, value)


_ONLY_WITH: Mapping[str, tuple[str, ...]] = {
    "auto_formats": ("auto",),
    "auto_bits": ("auto",),
    "smoothquant": ("int8_sq",),
    "awq_block_size": ("int4_awq", "w4a8_awq", "auto"),
    "group_size": ("int4_gptq",),
}


def build_py_leaves_no_choice(facts: EngineFacts) -> Diagnostics:
    """Where ``build.py`` builds the engine, only one program can quantize."""
    toolchain, wanted = facts.toolchain, facts.job.engine.quantization
    if toolchain is None or not toolchain.by_build_py or wanted.tool is None:
        return
    if wanted.tool != tool(wanted, by_build_py=True):
        message = f"with build.py of {toolchain.release.version} only one program can quantize"
        yield in_job("release", "engine.quantization.tool", message, "leave it out", wanted.tool)


RULES = (
    *(lora_names_modules, adapters_can_be_asked_for, adapters_can_be_converted),
    *(speculative_is_whole, quantization_is_whole, build_py_leaves_no_choice),
)
