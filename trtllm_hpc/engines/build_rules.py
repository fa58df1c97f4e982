"""Rules for building an engine: programs, combinations of keys, LoRA and quantization."""

from __future__ import annotations

from pathlib import PurePosixPath

from trtllm_hpc.config.diagnostics import Diagnostics, in_cluster, in_job, nearest, placeholder_problems
from trtllm_hpc.engines.build_steps import OWN_FOLDERS, OWN_NUMBERS
from trtllm_hpc.engines.facts import LORA_PROGRAM, EngineFacts
from trtllm_hpc.engines.options import CONVERTED
from trtllm_hpc.errors import Diagnostic
from trtllm_hpc.tensorrt_llm.releases.programs import families

# Programs -----------------------------------------------------------------------------


def family_is_known(facts: EngineFacts) -> Diagnostics:
    """The model's family must be known from its config.json or model.family."""
    job = facts.job
    if facts.release is None or facts.family is not None or not facts.builds_engine or job.model.path is None:
        return
    config, stated = facts.model_config, job.model.family
    hint = f"set it to one of {', '.join(families())}, or write upstream's commands into build.commands"
    if stated is not None:
        near = nearest(stated, families())
        message = f"no programs are known for the family {stated}"
        hint = f"did you mean {near}? {hint}" if near else hint
        yield in_job("bad-value", "model.family", message, hint, stated)
    elif config is None:
        message = f"the model's {job.model.path}/config.json cannot be read here, so its family is not known"
        hint = "correct the path; if only the nodes see it, set model.family (--set model.family=llama)"
        yield in_job("unreadable", "model.path", message, hint, job.model.path)
    else:
        message = "is needed here, since the model's config.json names no architecture"
        if named := config.get("architectures"):
            message = f"no programs are known for the architecture {named[0]} of the model's config.json"
        yield in_job("missing", "model.family", message, hint)


def toolchain_exists(facts: EngineFacts) -> Diagnostics:
    """The release must have programs that build an engine of such a model."""
    if facts.no_toolchain is not None:
        yield from facts.no_toolchain.diagnostics


def examples_are_known(facts: EngineFacts) -> Diagnostics:
    """The folder of upstream's conversion programs must be known."""
    release = facts.release
    is_named = any("{examples}" in word for command in facts.job.build.commands for word in command)
    if release is None or facts.examples_folder is not None or not (facts.toolchain or is_named):
        return
    message = (
        f"the folder of upstream's examples in the container of TensorRT-LLM {release.version} is not known"
    )
    hint = f"clone TensorRT-LLM v{release.version} and set it to the clone's folder 'examples'"
    yield in_cluster("missing", "container.examples", message, hint)


def keys_have_options(facts: EngineFacts) -> Diagnostics:
    """The release's programs must have options for every key of the engine, and for ``engine.options``."""
    if facts.command_lines is not None:
        first: dict[str, Diagnostic] = {}
        for problem in facts.command_lines.problems:
            first.setdefault(problem.field, problem)  # one per key: all options of a key fail for one reason
        yield from first.values()


def own_commands_are_whole(facts: EngineFacts) -> Diagnostics:
    """Commands of the job file must write an engine, and use only known placeholders."""
    commands = facts.job.build.commands
    for number, words in enumerate(commands):
        field = f"build.commands[{number}]"
        yield from placeholder_problems(field, words, (*OWN_FOLDERS, *OWN_NUMBERS, "examples"))
        for place, word in enumerate(words):
            inside = next((name for name in OWN_FOLDERS if f"{{{name}}}" in word[1:]), None)
            if inside is not None and f"{{{{{inside}}}}}" not in word:
                message = f"{{{inside}}} stands for a folder, and must be at the beginning of its word"
                hint = f'write the option and its folder as two words, e.g. "--folder", "{{{inside}}}"'
                yield in_job("bad-value", f"{field}[{place}]", message, hint, word)
    if commands and not any("{output}" in word for word in commands[-1]):
        message = "the last command has no {output}, the folder of the engine"
        yield in_job("missing", "build.commands", message, 'add it, e.g. "--output_dir", "{output}"')


# Combinations of keys -----------------------------------------------------------------


def inflight_needs_paged_cache(facts: EngineFacts) -> Diagnostics:
    """In-flight batching needs a paged KV cache and packed prompts."""
    job, toolchain = facts.job, facts.toolchain
    if not facts.builds_engine or job.repository.batching_strategy == "V1":
        return
    engine = job.engine
    hint = "leave it out, or set repository.batching_strategy to V1"
    if engine.kv_cache_type in ("continuous", "disabled"):
        message = f"a KV cache that is {engine.kv_cache_type} rules out {job.repository.batching_strategy}"
        yield in_job("conflict", "engine.kv_cache_type", message, hint, engine.kv_cache_type)
    if engine.remove_input_padding is False:
        message = f"padded prompts rule out {job.repository.batching_strategy}"
        yield in_job("conflict", "engine.remove_input_padding", message, hint, False)
    if toolchain is not None and toolchain.by_build_py and not engine.inflight_batching:
        build = toolchain.builder
        message = f"{job.repository.batching_strategy} needs an engine that {build.name} of {build.release}"
        message += " has built for it"
        hint = "set engine.inflight_batching to true, or repository.batching_strategy to V1"
        yield in_job("conflict", "repository.batching_strategy", message, hint)


def prompts_over_paged_cache(facts: EngineFacts) -> Diagnostics:
    """KV cache reuse and chunked context need prompts computed over the paged cache."""
    job, toolchain = facts.job, facts.toolchain
    if toolchain is None:
        return
    is_paged = job.engine.paged_context_fmha
    if is_paged is None and not toolchain.by_build_py:
        option = toolchain.builder.options.get("--use_paged_context_fmha")
        is_paged = option is not None and option.default in ("enable", True)
    wanted = {
        "kv_cache.enable_block_reuse": job.kv_cache.enable_block_reuse,
        "engine.enable_chunked_prefill": job.engine.enable_chunked_prefill,
    }
    for key in (key for key, is_wanted in wanted.items() if is_wanted and not is_paged):
        message = "needs an engine whose prompts are computed over the paged KV cache"
        yield in_job("conflict", key, message, "set engine.paged_context_fmha to true", True)


# LoRA and quantization --------------------------------------------------------


def lora_names_modules(facts: EngineFacts) -> Diagnostics:
    """An engine for LoRA adapters needs the adapters' modules and rank."""
    job = facts.job
    if not facts.builds_engine:
        return
    lora, rank = job.engine.lora, job.engine.max_lora_rank
    if rank and not lora.target_modules:
        message = "is needed beside engine.max_lora_rank"
        yield in_job("missing", "engine.lora.target_modules", message, "e.g. [attn_q, attn_k, attn_v]")
    if not rank and (lora.target_modules or lora.adapters):
        hint = "set engine.max_lora_rank to the adapters' rank, or remove engine.lora"
        message = "is set, but engine.max_lora_rank is 0, which builds an engine without LoRA"
        yield in_job("conflict", "engine.lora", message, hint)


def adapters_can_be_converted(facts: EngineFacts) -> Diagnostics:
    """The release must have a program that converts adapters, and adapters need different folder names."""
    job, toolchain = facts.job, facts.toolchain
    adapters = job.engine.lora.adapters
    if toolchain is None or not adapters:
        return
    release, family = toolchain.release, toolchain.family.examples
    if release.program(LORA_PROGRAM, family) is None:
        message = f"TensorRT-LLM {release.version} has no {LORA_PROGRAM}"
        yield in_job("release", "engine.lora.adapters", message, "remove it, or use another release")
        return
    names = [PurePosixPath(adapter).name for adapter in adapters]
    for name in sorted({name for name in names if names.count(name) > 1}):
        message = f"two adapters are called {name}, but each needs an output folder of its own name"
        yield in_job("conflict", "engine.lora.adapters", message, "rename the folder of one")


def gptq_has_weights(facts: EngineFacts) -> Diagnostics:
    """GPTQ's weights must be named, unless the conversion reads them from the model's folder.

    Qwen's conversion does that (examples/qwen/README.md, 'INT4-GPTQ').
    """
    wanted = facts.job.engine.quantization
    if facts.toolchain is None or wanted.method != "int4_gptq" or wanted.checkpoint is not None:
        return
    if any(
        option in program.options for program in facts.toolchain.programs.values() for option in CONVERTED
    ):
        message = "int4_gptq needs weights that are quantized already"
        yield in_job("missing", "engine.quantization.checkpoint", message, "set it to their file or folder")


RULES = (
    *(family_is_known, toolchain_exists, examples_are_known, keys_have_options, own_commands_are_whole),
    *(inflight_needs_paged_cache, prompts_over_paged_cache),
    *(lora_names_modules, adapters_can_be_converted, gptq_has_weights),
)
