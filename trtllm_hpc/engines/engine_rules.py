"""Rules of the keys of a TensorRT-LLM engine among each other, and of the GPU."""

from __future__ import annotations

from trtllm_hpc.config.diagnostics import Diagnostics, in_job
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.engines.command_lines.speculative import EXTERNAL
from trtllm_hpc.engines.command_lines.toolchain import Toolchain
from trtllm_hpc.engines.facts import EngineFacts
from trtllm_hpc.tensorrt_llm.releases.placeholders import placeholders_of

_DRAFTING = ("medusa", "redrafter", "lookahead", "eagle")


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
        message += " has made for it"
        hint = "set engine.inflight_batching to true, or repository.batching_strategy to V1"
        yield in_job("conflict", "repository.batching_strategy", message, hint)


def decoding_matches(facts: EngineFacts) -> Diagnostics:
    """Speculative decoding and weight streaming need an engine built for them."""
    job, release = facts.job, facts.release
    if release is None or not facts.builds_engine:
        return
    mode, wanted = job.repository.decoding_mode, job.engine.speculative
    there = placeholders_of(release.version, "inflight_batcher_llm", "tensorrt_llm").get("decoding_mode")
    # Another rule refuses a mode that the release does not have at all.
    drafts = mode in _DRAFTING and there is not None and mode in there.choices
    if drafts and (wanted is None or wanted.mode != mode):
        message = f"{mode} needs an engine that was built for it"
        hint = "build it by build.commands, or name a finished one in engine.directory"
        if mode == "lookahead":
            hint = f"set engine.speculative.mode to {mode}"
        yield in_job("conflict", "repository.decoding_mode", message, hint, mode)
    share = job.repository.gpu_weights_percent
    if share is not None and share < 1 and not job.engine.weight_streaming:
        message = "weights can be left off the GPU only if the engine was built for it"
        hint = "set engine.weight_streaming to true"
        yield in_job("conflict", "repository.gpu_weights_percent", message, hint, share)


def prompts_over_paged_cache(facts: EngineFacts) -> Diagnostics:
    """KV cache reuse and chunked context need prompts computed over the paged cache."""
    job, toolchain = facts.job, facts.toolchain
    if toolchain is None or _is_paged(job, toolchain):
        return
    wanted = {
        "kv_cache.enable_block_reuse": job.kv_cache.enable_block_reuse,
        "engine.enable_chunked_prefill": job.engine.enable_chunked_prefill,
    }
    for key in (key for key, is_wanted in wanted.items() if is_wanted):
        message = "needs an engine whose prompts are computed over the paged KV cache"
        yield in_job("conflict", key, message, "set engine.paged_context_fmha to true", True)


def _is_paged(job: JobFile, toolchain: Toolchain) -> bool:
    if job.engine.paged_context_fmha is not None:
        return job.engine.paged_context_fmha
    if job.engine.speculative is not None and job.engine.speculative.mode == EXTERNAL:
        return True
    option = None if toolchain.by_build_py else toolchain.builder.options.get("--use_paged_context_fmha")
    return option is not None and option.default in ("enable", True)


def encoder_decoder_is_built(facts: EngineFacts) -> Diagnostics:
    """The engines of an encoder and a decoder are finished ones, or built by commands of the job file."""
    if facts.builds_engine and facts.job.engine.encoder_decoder:
        message = "keys of a job file build one engine, not those of an encoder and a decoder"
        hint = "write upstream's commands into build.commands, or name a finished pair in engine.directory"
        yield in_job("conflict", "engine.encoder_decoder", message, hint, True)


def answers_fit_default(facts: EngineFacts) -> Diagnostics:
    """Without engine.max_seq_len, the companion's answers are not longer than the release's default."""
    job, toolchain = facts.job, facts.toolchain
    if toolchain is None or job.engine.max_seq_len is not None or not job.companion.enabled:
        return
    option = toolchain.builder.options.get("--max_output_len")
    if option is None or not isinstance(option.default, int):
        return
    for key, tokens in job.asked_tokens.items():
        if tokens > option.default:
            message = f"{tokens} tokens are more than {option.default}, the longest answer of this release"
            message += " when engine.max_seq_len is left out"
            yield in_job("conflict", key, message, "set engine.max_seq_len", tokens)


RULES = (
    *(inflight_needs_paged_cache, decoding_matches, prompts_over_paged_cache),
    *(encoder_decoder_is_built, answers_fit_default),
)
