"""What the keys of an engine for TensorRT-LLM ask of each other and of the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.config.problems import Problems, in_job
from trtllm_hpc.config.release_rules import Facts, builds, facts, route_of

LEAST_CAPABILITY: Mapping[str, tuple[int, int]] = {
    "fp8": (8, 9),
    "fp8_rowwise": (8, 9),
    "w4a8_awq": (8, 9),
    "bfloat16": (8, 0),
}
"""The oldest GPUs that compute in a type (TensorRT-LLM, docs/source/reference/precision.md)."""
NO_VOLTA_SINCE = "0.16.0"
"""Release notes of 0.15 and 0.16: Volta is no longer supported."""


def gpu_computes_type(job: JobFile, cluster: ClusterProfile) -> Problems:
    """The profile's GPUs compute in the types that the job names."""
    known = facts(job, cluster)
    if known is None or cluster.compute_capability is None:
        return
    there = _capability(cluster.compute_capability)
    for key, kind in _types(job):
        least = LEAST_CAPABILITY.get(kind, (0, 0))
        if there < least:
            message = f"{kind} needs GPUs of compute capability {least[0]}.{least[1]}, these have"
            message += f" {cluster.compute_capability}"
            yield in_job("release", key, message, "choose another type, or another partition", kind)
    from packaging.version import Version

    if there < (8, 0) and Version(known.release.version) >= Version(NO_VOLTA_SINCE):
        message = f"TensorRT-LLM {known.release.version} does not compute on GPUs older than 8.0"
        hint = "take a release before 0.16, or another partition"
        yield in_job("release", "engine.tensorrt_llm_version", message, hint, known.release.version)


def _capability(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


def _types(job: JobFile) -> Iterator[tuple[str, str]]:
    quantization = job.engine.quantization
    if quantization.method is not None:
        yield "engine.quantization.method", quantization.method
    if quantization.kv_cache is not None:
        yield "engine.quantization.kv_cache", quantization.kv_cache
    if job.engine.dtype is not None:
        yield "engine.dtype", job.engine.dtype


def inflight_needs_paged_cache(job: JobFile, cluster: ClusterProfile) -> Problems:
    """Requests join and leave a batch only over a paged KV cache and packed prompts."""
    if not builds(job) or job.repository.batching_strategy == "V1":
        return
    engine = job.engine
    hint = "leave it out, or set repository.batching_strategy to V1"
    if engine.kv_cache in ("continuous", "disabled"):
        message = f"a KV cache that is {engine.kv_cache} rules out {job.repository.batching_strategy}"
        yield in_job("conflict", "engine.kv_cache", message, hint, engine.kv_cache)
    if engine.remove_input_padding is False:
        message = f"padded prompts rule out {job.repository.batching_strategy}"
        yield in_job("conflict", "engine.remove_input_padding", message, hint, False)
    found = route_of(job, cluster)
    if found is not None and found[1].by_build_py and not engine.inflight_batching:
        build = found[1].programs[-1].command
        message = f"{job.repository.batching_strategy} needs an engine that {build.name} of {build.release}"
        message += " has made for it"
        hint = "set engine.inflight_batching to true, or repository.batching_strategy to V1"
        yield in_job("conflict", "repository.batching_strategy", message, hint)


def prompts_over_paged_cache(job: JobFile, cluster: ClusterProfile) -> Problems:
    """KV cache reuse and chunked context need prompts computed over the paged cache."""
    found = route_of(job, cluster)
    if found is None or _is_paged(job, found[1].program("build")):
        return
    for key in ("kv_cache_reuse", "chunked_context"):
        if getattr(job.repository, key):
            message = "needs an engine whose prompts are computed over the paged KV cache"
            yield in_job(
                "conflict", f"repository.{key}", message, "set engine.paged_context_fmha to true", True
            )


def _is_paged(job: JobFile, build: object) -> bool:
    from trtllm_hpc.config.spelling import speculative
    from trtllm_hpc.config.spelling.route import Program

    if job.engine.paged_context_fmha is not None:
        return job.engine.paged_context_fmha
    how = speculative.mode(job)
    if how is not None and how.paged_context_fmha:
        return True
    option = build.command.options.get("--use_paged_context_fmha") if isinstance(build, Program) else None
    return option is not None and option.default in ("enable", True)


def lora_names_modules(job: JobFile, cluster: ClusterProfile) -> Problems:
    """An engine that takes adapters must know of which modules, and of which rank."""
    if not builds(job):
        return
    lora, rank = job.engine.lora, job.engine.max_lora_rank
    if rank and not lora.target_modules and not lora.directories:
        hint = "set it, e.g. to [attn_q, attn_k, attn_v], or set engine.lora.directories"
        yield in_job("missing", "engine.lora.target_modules", "is needed beside engine.max_lora_rank", hint)
    if not rank and (lora.target_modules or lora.adapters or lora.directories):
        hint = "set engine.max_lora_rank to the adapters' rank, or remove engine.lora"
        yield in_job("conflict", "engine.lora", "is set, but engine.max_lora_rank is 0: built without", hint)


def adapters_can_be_converted(job: JobFile, cluster: ClusterProfile) -> Problems:
    """The release has a program for adapters, and each goes into a folder of its own name."""
    found = route_of(job, cluster)
    adapters = job.engine.lora.adapters
    if found is None or not adapters:
        return
    from trtllm_hpc.config.spelling.lora import PROGRAM
    from trtllm_hpc.config.spelling.raw import lora_problems
    from trtllm_hpc.config.spelling.refusals import lifetime

    release, family = found[0].release, found[1].family.examples
    command = release.command(PROGRAM, family)
    if command is None:
        since = lifetime(PROGRAM, "--in-file", family)
        message = f"TensorRT-LLM {release.version} has no {PROGRAM}: {since}"
        yield in_job("release", "engine.lora.adapters", message, "remove it, or take another release")
        return
    names = [PurePosixPath(adapter).name for adapter in adapters]
    for name in sorted({name for name in names if names.count(name) > 1}):
        message = f"two adapters are called {name}, which names the folder of each"
        yield in_job("conflict", "engine.lora.adapters", message, "rename the folder of one")
    yield from lora_problems(job, command)


def speculative_is_whole(job: JobFile, cluster: ClusterProfile) -> Problems:
    """Each way to draft tokens has what it needs."""
    wanted = job.engine.speculative
    if wanted is None or not builds(job):
        return
    from trtllm_hpc.config.spelling import speculative

    how = speculative.mode(job)
    assert how is not None
    if how.weights is not None and wanted.model is None:
        message = f"{wanted.mode} needs the folder of its heads"
        yield in_job("missing", "engine.speculative.model", message, "set it to the folder")
    if how.weights is None and wanted.model is not None:
        message = f"{wanted.mode} has no weights in the engine"
        hint = "remove it; a draft model of its own is served as a second model"
        yield in_job("conflict", "engine.speculative.model", message, hint, wanted.model)
    if how.needs_length and wanted.max_draft_len is None:
        message = f"{wanted.mode} needs the most tokens that are drafted at once"
        yield in_job("missing", "engine.speculative.max_draft_len", message, "set it, e.g. to 10")
    if how.paged_context_fmha and job.engine.paged_context_fmha is False:
        message = f"{wanted.mode} computes prompts over the paged KV cache"
        hint = "leave engine.paged_context_fmha out"
        yield in_job("conflict", "engine.paged_context_fmha", message, hint, False)


def quantization_is_whole(job: JobFile, cluster: ClusterProfile) -> Problems:
    """The keys of a quantization go with its method."""
    wanted = job.engine.quantization
    field = "engine.quantization"
    if wanted.method == "auto" and not wanted.auto_formats:
        yield in_job("missing", f"{field}.auto_formats", "auto needs formats", "e.g. [fp8, int4_awq]")
    if wanted.method == "auto" and wanted.auto_bits is None:
        yield in_job("missing", f"{field}.auto_bits", "auto needs a number of bits", "e.g. 5")
    if wanted.method == "int4_gptq" and wanted.checkpoint is None and builds(job):
        message = "int4_gptq needs weights that GPTQ has quantized"
        yield in_job("missing", f"{field}.checkpoint", message, "set it to their file")
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


def build_py_has_scales(job: JobFile, cluster: ClusterProfile) -> Problems:
    """LLaMA's build.py reads int8 scales that another program has computed."""
    found = route_of(job, cluster)
    wanted = job.engine.quantization
    if found is None or not found[1].by_build_py:
        return
    from trtllm_hpc.config.spelling.quantization import tool

    chosen = tool(wanted, by_build_py=True)
    if wanted.tool is not None and wanted.tool != chosen:
        message = f"with build.py of {found[0].release.version} there is no choice between programs"
        yield in_job("release", "engine.quantization.tool", message, "leave it out", wanted.tool)
    if found[1].program("prepare") is not None:
        return
    needs = wanted.method == "int8_sq" or wanted.kv_cache == "int8"
    if needs and wanted.checkpoint is None:
        message = f"build.py of {found[0].release.version} reads scales for int8 from a checkpoint"
        hint = "make one with hf_llama_convert.py (-sq 0.5, or -kv for the KV cache) and name it here"
        yield in_job("missing", "engine.quantization.checkpoint", message, hint)


def encoder_decoder_matches(job: JobFile, cluster: ClusterProfile) -> Problems:
    """Two engines are for models with an encoder and a decoder, and for those only."""
    known = facts(job, cluster)
    if known is None or known.family is None or not builds(job):
        return
    if job.engine.encoder_decoder and not known.family.encoder_decoder:
        message = f"a model of the family {known.family.name} has no encoder"
        yield in_job("conflict", "engine.encoder_decoder", message, "remove it, or mend model.family", True)
    if known.family.encoder_decoder:
        yield from _encoder_decoder(job, known)


def _encoder_decoder(job: JobFile, known: Facts) -> Problems:
    assert known.family is not None
    if job.repository.chunked_context:
        message = "encoder-decoder models do not run with chunked context"
        yield in_job("conflict", "repository.chunked_context", message, "remove it", True)
    if job.engine.context_fmha and known.family.context_fmha is False:
        message = f"fused attention cannot compute {known.family.name}, whose attention has a position bias"
        yield in_job("conflict", "engine.context_fmha", message, "leave it out", True)


def answers_fit_default(job: JobFile, cluster: ClusterProfile) -> Problems:
    """The companion asks for no longer answers than the release builds for when nothing is said."""
    found = route_of(job, cluster)
    if found is None or job.engine.max_seq_len is not None or not job.companion.enabled:
        return
    build = found[1].program("build") or found[1].program("build_py")
    option = build.command.options.get("--max_output_len") if build is not None else None
    if option is None or not isinstance(option.default, int):
        return
    asked = {"companion.request.max_tokens": job.companion.request.max_tokens}
    if job.companion.benchmark is not None:
        asked["companion.benchmark.max_tokens"] = job.companion.benchmark.max_tokens
    for key, tokens in asked.items():
        if tokens > option.default:
            message = f"{tokens} tokens are more than {option.default}, the longest answer of this release"
            message += " when engine.max_seq_len is left out"
            yield in_job("conflict", key, message, "set engine.max_seq_len", tokens)


RULES: Sequence[Callable[[JobFile, ClusterProfile], Problems]] = (
    gpu_computes_type,
    inflight_needs_paged_cache,
    prompts_over_paged_cache,
    lora_names_modules,
    adapters_can_be_converted,
    speculative_is_whole,
    quantization_is_whole,
    build_py_has_scales,
    encoder_decoder_matches,
    answers_fit_default,
)
