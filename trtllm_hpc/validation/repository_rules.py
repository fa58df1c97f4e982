"""Rules of the ``repository`` section for the release of TensorRT-LLM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trtllm_hpc.config.diagnostics import Diagnostics, dotted, in_job, nearest
from trtllm_hpc.config.repository import Repository
from trtllm_hpc.errors import Diagnostic
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts
from trtllm_hpc.tensorrt_llm.releases import Release
from trtllm_hpc.tensorrt_llm.releases.placeholders import Placeholder, known_placeholders
from trtllm_hpc.tensorrt_llm.repository_keys import GROUPS, KEYS, PLANNED, as_words, settable

_KEYS_OF: Mapping[str, tuple[str, ...]] = {
    "pytorch": (
        "decoupled",
        "tokenizer",
        "batch_scheduler_policy",
        "chunked_context",
        "kv_cache_free_gpu_mem_fraction",
        "kv_cache_host_memory_bytes",
        "kv_cache_reuse",
        "max_attention_window_size",
        "max_tokens_in_paged_kv_cache",
        "models",  # serve_rules has a better sentence
        "parameters",  # a rule of its own has a better sentence
        "sink_token_length",
    ),
    "reference": (
        "decoupled",
        "preprocessing_instances",
        "postprocessing_instances",
        "bls_instances",
        "accumulate_tokens",
        "kv_cache_free_gpu_mem_fraction",
        "max_queue_size",
        "max_tokens_in_paged_kv_cache",
        "models",
    ),
}
"""Keys with an effect on backends that do not fill upstream's templates."""


def _release(facts: JobFacts) -> Release | None:
    """Return the release whose templates are filled; ``None`` if none are."""
    return facts.release if facts.job.engine.has_engine and facts.job.frontend == "triton" else None


def repository_keys_exist(facts: JobFacts) -> Diagnostics:
    """A key of ``repository`` is a placeholder, or a parameter, of the release's templates."""
    job, release = facts.job, _release(facts)
    if release is None:
        return
    for key, places in KEYS.items():
        value = getattr(job.repository, key)
        if value is None or value == Repository.model_fields[key].default:
            continue
        here = [settable(release, model)[name] for model, name in places if name in settable(release, model)]
        if not here:
            message = f"TensorRT-LLM {release.version} has no {places[0][1]}{_history(release, *places[0])}"
            yield in_job("conflict", f"repository.{key}", message, "remove it, or use another release", value)
        elif misfit := here[0].misfit(as_words(value)):
            message = f"{misfit} in TensorRT-LLM {release.version}"
            yield in_job("bad-value", f"repository.{key}", message, "choose another value", value)


def backend_has_the_key(facts: JobFacts) -> Diagnostics:
    """Every key of ``repository`` has an effect on the backend."""
    job = facts.job
    backend = "pytorch" if job.frontend == "openai" else job.engine.backend
    if backend not in _KEYS_OF:
        return
    for key, field in Repository.model_fields.items():
        value = getattr(job.repository, key)
        default = field.get_default(call_default_factory=True)
        if key in _KEYS_OF[backend] or value is None or value == default:
            continue
        message, hint = f"{key} has no effect on the backend {backend}", "remove it"
        if backend == "pytorch":
            message = f"{key} has no effect on the LLM API"
            hint = "remove it; further arguments of LLM() go into engine.llm_api"
            if key == "instances":
                message = "several instances of the LLM API cannot share the one MPI world of the ranks"
                hint = "set it to 1, and submit the job once for each instance"
        yield in_job("conflict", f"repository.{key}", message, hint, value)


def one_window_before_lists(facts: JobFacts) -> Diagnostics:
    """Only releases from 0.13 on take an attention window for each layer."""
    release, windows = _release(facts), facts.job.repository.max_attention_window_size
    if release is None or windows is None or len(windows) < 2:
        return
    if not release.at_least("0.13.0"):
        message = f"TensorRT-LLM {release.version} takes one window for all layers; lists came with 0.13.0"
        field = "repository.max_attention_window_size"
        yield in_job("conflict", field, message, "leave one number in the list", windows)


def repository_has_tokenizer(facts: JobFacts) -> Diagnostics:
    """Pre- and postprocessing do not load without a tokenizer."""
    job = facts.job
    if _release(facts) is None:
        return
    if job.repository.tokenizer is None and job.model.path is None:
        message = "neither a tokenizer nor a model with one is named"
        yield in_job("missing", "repository.tokenizer", message, "name the tokenizer's folder")


def repository_parameters_exist(facts: JobFacts) -> Diagnostics:
    """Each entry of ``repository.parameters`` is a placeholder of the release, and no other key fills it."""
    job = facts.job
    if job.repository.parameters and (job.frontend == "openai" or not job.engine.has_engine):
        message = "there are no templates of upstream whose placeholders it could fill"
        yield in_job("conflict", "repository.parameters", message, "write them into engine.llm_api")
    release = _release(facts)
    if release is None:
        return
    copies = {copy.name: "tensorrt_llm" for copy in job.repository.models}
    if job.serve.mode == "disaggregated":
        copies |= {"context": "tensorrt_llm", "generation": "tensorrt_llm"}
    for name, values in job.repository.parameters.items():
        model = name if name in GROUPS else copies.get(name)
        field = dotted(("repository", "parameters", name))
        if model is None:
            known = ", ".join([*GROUPS, *copies])
            message = f"{name!r} is not a model of the repository"
            yield in_job("bad-value", field, message, f"choose one of {known}")
            continue
        yield from _parameters(release, name, model, values)


def _parameters(
    release: Release, name: str, model: str, values: Mapping[str, bool | int | float | str | None]
) -> Iterator[Diagnostic]:
    here = settable(release, model)
    ever = known_placeholders(release.version, GROUPS[model], model)
    for key, value in values.items():
        field = dotted(("repository", "parameters", name, key))
        if (model, key) in PLANNED:
            message = f"is what {PLANNED[model, key]} fills in"
            yield in_job("conflict", field, message, f"set {PLANNED[model, key]} instead", value)
        elif key in here:
            yield from _fits(release, field, here[key], value)
        elif key in ever:
            message = f"TensorRT-LLM {release.version} has no {key}{_history(release, model, key)}"
            yield in_job("conflict", field, message, "remove it, or use another release", value)
        elif near := nearest(key, here, cutoff=0.8):
            message = f"{key!r} is not a placeholder of {model} in TensorRT-LLM {release.version}"
            yield in_job("unknown-key", field, message, f"did you mean {near}?", value)
        # Any other name may be a placeholder in an unknown template; filling it shows that.


def _fits(
    release: Release, field: str, placeholder: Placeholder, value: bool | int | float | str | None
) -> Iterator[Diagnostic]:
    if value is None:
        if placeholder.required:
            message = f"{placeholder.name} needs a value"
            yield in_job("bad-value", field, message, "set it, or remove the line", value)
    elif misfit := placeholder.misfit(value):
        message = f"{misfit} in TensorRT-LLM {release.version}"
        yield in_job("bad-value", field, message, "choose another value", value)


def _history(release: Release, model: str, name: str) -> str:
    """Return since when, or until when, the placeholder exists, as a clause after "has no NAME"."""
    known = known_placeholders(release.version, GROUPS[model], model).get(name)
    if known is None:
        return ""
    if not release.at_least(known.since):
        return f", which came with {known.since}"
    return f", which went after {known.until}" if known.until is not None else ""
