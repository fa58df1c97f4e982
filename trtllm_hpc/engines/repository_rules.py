"""Rules of the ``repository`` section for the release of TensorRT-LLM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trtllm_hpc.config.diagnostics import Diagnostics, dotted, in_job, nearest
from trtllm_hpc.engines.facts import EngineFacts
from trtllm_hpc.engines.repository import GROUPS, KEYS, PLANNED, as_words, default_of, settable, value_of
from trtllm_hpc.errors import Diagnostic
from trtllm_hpc.tensorrt_llm.releases.placeholders import known_placeholders
from trtllm_hpc.tensorrt_llm.releases.release import Release


def no_llm_api(facts: EngineFacts) -> Diagnostics:
    """An engine behind Triton has no LLM API."""
    if facts.job.engine.llm_api:
        message = f"is set, but the backend {facts.job.engine.backend} has no LLM API"
        yield in_job("conflict", "engine.llm_api", message, "remove it, or take engine.backend: pytorch")


def repository_keys_exist(facts: EngineFacts) -> Diagnostics:
    """A key for upstream's templates is a placeholder, or a parameter, of the release's templates."""
    job, release = facts.job, facts.release
    if release is None:
        return
    for key, places in KEYS.items():
        value = value_of(job, key)
        if value is None or value == default_of(key):
            continue
        here = [settable(release, model)[name] for model, name in places if name in settable(release, model)]
        if not here:
            message = f"TensorRT-LLM {release.version} has no {places[0][1]}{_history(release, *places[0])}"
            yield in_job("conflict", key, message, "remove it, or use another release", value)
        elif misfit := here[0].misfit(as_words(value)):
            message = f"{misfit} in TensorRT-LLM {release.version}"
            yield in_job("bad-value", key, message, "choose another value", value)


def one_window_before_lists(facts: EngineFacts) -> Diagnostics:
    """Only releases from 0.13 on take an attention window for each layer."""
    release, windows = facts.release, facts.job.kv_cache.max_attention_window
    if release is None or windows is None or len(windows) < 2:
        return
    if not release.at_least("0.13.0"):
        message = f"TensorRT-LLM {release.version} takes one window for all layers; lists came with 0.13.0"
        field = "kv_cache.max_attention_window"
        yield in_job("conflict", field, message, "leave one number in the list", windows)


def repository_has_tokenizer(facts: EngineFacts) -> Diagnostics:
    """Pre- and postprocessing do not load without a tokenizer."""
    job = facts.job
    if job.model.tokenizer is None and job.model.path is None:
        message = "neither a tokenizer nor a model with one is named"
        yield in_job("missing", "model.tokenizer", message, "name the tokenizer's folder")


def repository_parameters_exist(facts: EngineFacts) -> Diagnostics:
    """Each entry of ``repository.parameters`` is a placeholder of the release, and no other key fills it."""
    job, release = facts.job, facts.release
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
        elif key in here and value is None:
            if here[key].required:
                message = f"{key} needs a value"
                yield in_job("bad-value", field, message, "set it, or remove the line", value)
        elif key in here:
            if value is not None and (misfit := here[key].misfit(value)):
                message = f"{misfit} in TensorRT-LLM {release.version}"
                yield in_job("bad-value", field, message, "choose another value", value)
        elif key in ever:
            message = f"TensorRT-LLM {release.version} has no {key}{_history(release, model, key)}"
            yield in_job("conflict", field, message, "remove it, or use another release", value)
        elif near := nearest(key, here, cutoff=0.8):
            message = f"{key!r} is not a placeholder of {model} in TensorRT-LLM {release.version}"
            yield in_job("unknown-key", field, message, f"did you mean {near}?", value)
        # Any other name may be a placeholder in an unknown template; filling it shows that.


def _history(release: Release, model: str, name: str) -> str:
    """Return since when, or until when, the placeholder exists, as a clause after "has no NAME"."""
    known = known_placeholders(release.version, GROUPS[model], model).get(name)
    if known is None:
        return ""
    if not release.at_least(known.since):
        return f", which came with {known.since}"
    return f", which went after {known.until}" if known.until is not None else ""


RULES = (
    *(no_llm_api, repository_keys_exist, one_window_before_lists),
    *(repository_has_tokenizer, repository_parameters_exist),
)
