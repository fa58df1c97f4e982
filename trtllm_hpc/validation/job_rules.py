"""Rules of a job file that need no profile: model, lengths, time limits, companion and adapters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

from trtllm_hpc.backends import backend_of
from trtllm_hpc.config.diagnostics import Diagnostics, in_job
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.config.rules import Excludes, Requires, Rule
from trtllm_hpc.validation.benchmark_rules import scheduled_seconds, settings_problems


def prompt_leaves_room(job: JobFile) -> Diagnostics:
    """``max_input_len`` is below ``max_seq_len``, which counts prompt and answer together."""
    prompt, both = job.engine.max_input_len, job.engine.max_seq_len
    if prompt is not None and both is not None and prompt >= both:
        message = f"a prompt of {prompt} tokens leaves no room for an answer: engine.max_seq_len is {both}"
        hint = f"set engine.max_seq_len above {prompt}"
        yield in_job("conflict", "engine.max_input_len", message, hint, prompt)


def cache_holds_a_request(job: JobFile) -> Diagnostics:
    """The KV cache holds the longest request, which could never run otherwise."""
    budget, both = job.kv_cache.max_tokens, job.engine.max_seq_len
    if budget is None or both is None:
        return  # the release chooses the value
    size, width = job.engine.tokens_per_block or 1, job.engine.max_beam_width or 1
    longest = -(-both // size) * size * width
    if budget < longest:
        beams = "" if width == 1 else f" and {width} beams"
        message = (
            f"a KV cache of {budget} tokens cannot hold a request of engine.max_seq_len "
            f"{both}{beams}, which takes {longest} tokens in whole blocks"
        )
        hint = f"set it to {longest} or more, or lower engine.max_seq_len"
        yield in_job("conflict", "kv_cache.max_tokens", message, hint, budget)


def answers_fit(job: JobFile) -> Diagnostics:
    """The companion's answers fit into the engine beside a prompt."""
    longest, benchmark = job.engine.max_seq_len, job.companion.benchmark
    if longest is None or not job.companion.enabled:
        return
    asked = {"request.max_tokens": job.companion.request.max_tokens}
    if benchmark is not None:
        asked["benchmark.max_tokens"] = benchmark.max_tokens
        asked["benchmark.workload.output_tokens"] = benchmark.workload.output_tokens or 0
    for field, tokens in asked.items():
        if tokens >= longest:
            message = f"{tokens} tokens leave no room for a prompt: engine.max_seq_len is {longest}"
            hint = f"set it below {longest}, or raise engine.max_seq_len"
            yield in_job("conflict", f"companion.{field}", message, hint, tokens)


def prompts_fit(job: JobFile) -> Diagnostics:
    """The engine accepts the length of the benchmark's prompts."""
    benchmark, longest = job.companion.benchmark, job.engine.max_input_len
    if benchmark is None or longest is None or not job.companion.enabled:
        return
    workload = benchmark.workload
    if workload.kind not in ("normal", "shared-prefix"):
        return
    prefix = workload.prefix_tokens if workload.kind == "shared-prefix" else 0
    tokens = prefix + workload.input_tokens
    if tokens > longest:
        message = f"prompts of {tokens} tokens are longer than engine.max_input_len ({longest})"
        hint = f"ask for {longest} tokens at most, or raise engine.max_input_len"
        yield in_job(
            "conflict", "companion.benchmark.workload.input_tokens", message, hint, workload.input_tokens
        )


def logits_are_gathered(job: JobFile) -> Diagnostics:
    """The companion requests logits only from an engine that gathers them."""
    for name in ("context_logits", "generation_logits"):
        if not (job.companion.enabled and getattr(job.companion.request, name)):
            continue
        field, gather = f"companion.request.{name}", f"gather_{name}"
        if (reason := backend_of(job).why_no_logits) is not None:
            yield in_job("conflict", field, reason, "set it to false", True)
        elif job.engine.directory is None and not getattr(job.engine, gather):
            message = f"the engine returns no {name}, because engine.{gather} is false"
            yield in_job("conflict", field, message, f"set engine.{gather} to true", True)


def server_wait_ends(job: JobFile) -> Diagnostics:
    """``ready_timeout_seconds`` ends before the job's time limit."""
    ready, limit = job.serve.ready_timeout_seconds, job.serve.time_limit_minutes * 60
    if ready >= limit:
        message = f"the wait for the server's start ({ready} s) exceeds the job's time limit ({limit} s)"
        hint = f"set it below {limit}, or raise serve.time_limit_minutes"
        yield in_job("conflict", "serve.ready_timeout_seconds", message, hint, ready)


def evaluation_is_over_openai(job: JobFile) -> Diagnostics:
    """An evaluated server has OpenAI's protocol, which Triton offers through the gateway behind the proxy."""
    evaluates = job.companion.enabled and job.companion.evaluate is not None
    if evaluates and job.frontend == "triton" and not backend_of(job).can_have_gateway:
        message = "an evaluation needs OpenAI's protocol, which Triton does not offer with this backend"
        yield in_job("conflict", "companion.evaluate", message, "set serve.frontend to openai")
    elif evaluates and job.frontend == "triton" and job.serve.proxy == "none":
        message = "an evaluation needs OpenAI's protocol, which Triton offers only behind a proxy"
        yield in_job("conflict", "companion.evaluate", message, "set serve.proxy to haproxy")


def companion_wait_ends(job: JobFile) -> Diagnostics:
    """The companion waits longer than the server may start, so that the server fails first, with a reason."""
    ready, wait = job.serve.ready_timeout_seconds, job.endpoint_wait_s
    if job.companion.enabled and ready >= wait:
        message = f"the companion would give up after {wait} s, while the server may still start ({ready} s)"
        hint = f"set it to {ready // 60 + 2} or more, or lower serve.ready_timeout_seconds"
        minutes = job.companion.time_limit_minutes
        yield in_job("conflict", "companion.time_limit_minutes", message, hint, minutes)


def benchmark_settings(job: JobFile) -> Diagnostics:
    """The benchmark's settings do not contradict each other."""
    if job.companion.benchmark is not None:
        for problem in settings_problems(job.companion.benchmark):
            yield replace(problem, field=f"companion.benchmark.{problem.field}")


def benchmark_ends(job: JobFile) -> Diagnostics:
    """The benchmark's load ends before the time limits of server and companion."""
    benchmark = job.companion.benchmark
    if benchmark is None or not job.companion.enabled:
        return
    seconds = scheduled_seconds(benchmark)
    limits = {
        "serve.time_limit_minutes": job.serve.time_limit_minutes * 60,
        "companion.time_limit_minutes": job.companion.time_limit_minutes * 60,
    }
    key = "requests" if benchmark.duration_seconds is None else "duration_seconds"
    for name, limit in limits.items():
        if seconds >= limit:
            message = f"the benchmark lasts {seconds:.0f} s, longer than {name} allows ({limit} s)"
            hint = f"measure for a shorter time or at fewer levels, or raise {name}"
            yield in_job("conflict", f"companion.benchmark.{key}", message, hint, getattr(benchmark, key))


def adapters_fit(job: JobFile) -> Diagnostics:
    """The engine supports LoRA, and the adapter that the companion names exists."""
    field, adapter = "companion.request.lora", job.companion.request.lora
    if adapter is None or not job.companion.enabled:
        return
    if (adapter.directory is None) == (adapter.adapter is None):
        message = "needs either a folder or the name of an adapter that the build converts"
        yield in_job("conflict", field, message, "set directory or adapter, and not both")
    reason = backend_of(job).why_no_adapters
    if reason is not None:
        yield in_job("conflict", field, reason, "remove it, or set engine.backend to tensorrtllm")
    elif job.engine.directory is None and not job.engine.max_lora_rank:
        message = "an engine built with engine.max_lora_rank 0 accepts no LoRA adapters"
        yield in_job("conflict", field, message, "set engine.max_lora_rank to the adapters' highest rank")
    elif adapter.adapter is not None:
        yield from _converted(job, field, adapter.adapter)


def _converted(job: JobFile, field: str, name: str) -> Diagnostics:
    """The build converts the named adapter, to the type that servers accept."""
    engine = job.engine
    names = [PurePosixPath(folder).name for folder in engine.lora.adapters]
    if engine.directory is not None or name not in names:
        message = f"the build converts no adapter {name!r}, only {', '.join(names)}"
        if not names:
            message = f"the build converts no adapter {name!r}: engine.lora.adapters is empty"
        if engine.directory is not None:
            message = f"the adapter {name!r} is not converted: with engine.directory there is no build"
        hint = "add its folder to engine.lora.adapters, or set directory to a converted adapter"
        yield in_job("missing", field, message, hint, name)
    elif engine.lora.storage_type != "float16":
        stored = engine.lora.storage_type
        message = f"the build stores it as {stored} (engine.lora.storage_type), but servers need float16"
        yield in_job("conflict", field, message, "set engine.lora.storage_type to float16", name)


RULES: tuple[Rule, ...] = (
    Excludes("name=latest", "", "'latest' means the last submitted run", "choose another name",
             code="bad-value"),
    Requires("model.revision", "model.hub", "is the revision of a hub model, but model.hub is not set",
             "set model.hub, or remove the revision"),
    Requires("model", "model.path model.hub model.synthetic engine.directory", "names no model",
             "set model.path to a folder, model.hub to org/name, or model.synthetic to tiny-llama",
             code="missing"),
    Excludes("model.synthetic", "model.path model.hub", "names both a synthetic model and another one",
             "set one of the two to null", at="model"),
    *(prompt_leaves_room, cache_holds_a_request, answers_fit, prompts_fit, logits_are_gathered),
    *(server_wait_ends, evaluation_is_over_openai, companion_wait_ends, benchmark_settings),
    *(benchmark_ends, adapters_fit),
)  # fmt: skip
