"""From a job with an engine to one that serves with the LLM API on PyTorch: what becomes of each key.

Engines ended with TensorRT-LLM 1.2.1. Most keys are in the data file ``migration.toml``, with its sources;
here are those whose value decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from trtllm_hpc.config.dump import flow
from trtllm_hpc.config.edit import EditedText, Keys
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.runtime.quantize import FORMATS
from trtllm_hpc.tensorrt_llm.releases.data_files import read_data
from trtllm_hpc.tensorrt_llm.releases.release import release_of_version, releases

Kind = Literal["changed", "dropped", "lost"]
_FIRST = "1.0.0"
"""From here on PyTorch is upstream's default backend; what older releases have of it is another matter."""


@dataclass(frozen=True)
class Change:
    """What becomes of a key of the job file."""

    kind: Kind
    """``changed``: it is written in another way. ``dropped``: it has nothing to decide any more. ``lost``: it
    asked for something that the PyTorch path does not have."""
    key: str
    """E.g. ``engine.plugins``."""
    now: str | None
    """What stands for it, as ``key: value``."""
    why: str
    instead: str | None = None
    """What to do about something that is lost."""


@dataclass(frozen=True)
class Migrated:
    """A job file of the PyTorch path, and what became of the keys of the engine path."""

    text: str
    """The new job file, with the comments of the old one."""
    changes: tuple[Change, ...]
    output: str | None = None
    """The file that it was written to."""


class AlreadyMigrated(ValueError):
    """The job has no engine; the text says which backend it has."""


_NAME = "the LLM API's name of it"
_CACHE = ("engine", "llm_api", "kv_cache_config")
_METHODS = {**{method: method for method in FORMATS}, "fp8_rowwise": "fp8"}
"""What Model Optimizer quantizes a checkpoint to, by the method of an engine."""
_OF_CHECKPOINTS = ("method", "kv_cache", "calibration_dataset", "calibration_size", "batch_size")
"""Keys of ``engine.quantization`` that mean the same then."""

_SPECULATION = {
    "draft_tokens_external": "{decoding_type: DraftTarget, max_draft_len: N, speculative_model_dir: FOLDER} "
    "with the folder of the draft model itself, not of an engine (after 1.2: Draft_Target)",
    "eagle": "{decoding_type: Eagle, max_draft_len: N, speculative_model_dir: FOLDER}, heads of EAGLE-3",
    "lookahead": "{decoding_type: NGram, max_draft_len: N, max_matching_ngram_size: M}",
}
_OTHER_SPECULATION = (
    "{decoding_type: Eagle, ...} with heads of EAGLE-3, MTP where the model has its layers, or NGram"
)


def migrate(text: str, job: JobFile) -> Migrated:
    """Rewrite a job file, given as text and as read, for the LLM API on PyTorch.

    Raises AlreadyMigrated if the job has no engine of TensorRT-LLM.
    """
    if job.engine.backend not in ("tensorrtllm", "python"):
        raise AlreadyMigrated(job.engine.backend)
    edited = EditedText(text)
    changes = [
        *_backend(edited, job),
        *_modes(edited, job),
        *_quantization(edited, job),
        *_speculation(edited, job),
        *_kv_cache(edited, job),
        *_build(edited, job),
        *_by_rules(edited, job),
    ]
    return Migrated(edited.text, tuple(changes))


def _backend(edited: EditedText, job: JobFile) -> Iterator[Change]:
    path = ("engine", "backend")
    edited.put(path, "pytorch")
    why = "the LLM API loads the model's checkpoint itself"
    yield Change("changed", "engine.backend", "engine.backend: pytorch", why)
    stated = release_of_version(job.engine.tensorrt_llm_version or "")
    newest = releases()[-1].version
    if stated is not None and not stated.at_least(_FIRST):
        edited.put(("engine", "tensorrt_llm_version"), newest)
        why = f"PyTorch is upstream's default from {_FIRST} on; null goes by the image"
        now = f"engine.tensorrt_llm_version: {newest}"
        yield Change("changed", "engine.tensorrt_llm_version", now, why)


def _modes(edited: EditedText, job: JobFile) -> Iterator[Change]:
    mode = job.serve.mode
    if mode == "disaggregated":
        yield from _phases(edited, job)
        return
    if not edited.has(("serve", "mode")):
        return
    edited.remove(("serve", "mode"))
    if mode == "leader":
        yield Change("dropped", "serve.mode", None, "trtllm-serve has one mode")
    else:
        copies = max(1, len(job.repository.models))
        edited.put(("serve", "instances"), copies)
        why = "servers behind one door take the place of copies in one server, and have one name"
        yield Change("changed", "serve.mode", f"serve.instances: {copies}", why)


def _phases(edited: EditedText, job: JobFile) -> Iterator[Change]:
    """Copies on GPUs that are named become servers, whose GPUs Slurm chooses."""
    phases = job.serve.disaggregated
    for name in ("context", "generation") if phases is not None else ():
        phase = getattr(phases, name)
        path = ("serve", "disaggregated", name)
        key = ".".join(path)
        # First, so that the section stays.
        edited.put((*path, "servers"), max(1, len(phase.instances)))
        if edited.has((*path, "instances")):
            edited.remove((*path, "instances"))
            why = "a trtllm-serve for each, on GPUs that Slurm chooses, on one node or several"
            yield Change("changed", f"{key}.instances", f"{key}.servers: {len(phase.instances)}", why)
        if edited.has((*path, "engine")):
            edited.remove((*path, "engine"))
            instead = "the checkpoint of model.path serves both phases"
            yield Change("lost", f"{key}.engine", None, "a finished engine cannot be loaded", instead)


def _quantization(edited: EditedText, job: JobFile) -> Iterator[Change]:
    path, field = ("engine", "quantization"), "engine.quantization"
    quantization = job.engine.quantization
    if not edited.has(path):
        return
    given = sorted(quantization.model_fields_set)
    method = _METHODS.get(quantization.method or "")
    kept: tuple[str, ...] = _OF_CHECKPOINTS if method is not None else ()
    if method is not None:
        edited.put((*path, "method"), method)
        why = "the build stage quantizes the checkpoint itself, with Model Optimizer in the image"
        yield Change("changed", f"{field}.method", f"{field}.method: {method}", why)
    elif quantization.method not in (None, "full_prec"):
        instead = f"take {', '.join(FORMATS)}, or set model.path to a quantized checkpoint"
        why = f"the PyTorch backend does not compute with {quantization.method}"
        yield Change("lost", f"{field}.method", None, why, instead)
    if quantization.kv_cache == "fp8" and method is None:
        edited.put((*_CACHE, "dtype"), "fp8")
        now = "engine.llm_api.kv_cache_config.dtype: fp8"
        yield Change("changed", f"{field}.kv_cache", now, _NAME)
    elif quantization.kv_cache not in (None, "fp8"):
        why = f"the PyTorch backend has no KV cache in {quantization.kv_cache}"
        instead = "engine.llm_api: {kv_cache_config: {dtype: fp8}}, from Ada and Hopper on"
        yield Change("lost", f"{field}.kv_cache", None, why, instead)
        kept = tuple(key for key in kept if key != "kv_cache")
    rest = [key for key in given if key not in (*kept, "method", "kv_cache")]
    if rest:
        names = ", ".join(f"{field}.{key}" for key in rest)
        yield Change("dropped", names, None, "it is for upstream's quantize.py, which is not run")
    if not kept:
        edited.remove(path)
    for key in given if kept else ():
        if key not in kept:
            edited.remove((*path, key))


def _build(edited: EditedText, job: JobFile) -> Iterator[Change]:
    if edited.has(("build",)) and job.engine.quantization.method not in _METHODS:
        edited.remove(("build",))
        yield Change("dropped", "build", None, "there is no build stage: the server loads the checkpoint")


def _speculation(edited: EditedText, job: JobFile) -> Iterator[Change]:
    speculation = job.engine.speculative
    if speculation is None or not edited.has(("engine", "speculative")):
        return
    edited.remove(("engine", "speculative"))
    how = _SPECULATION.get(speculation.mode, _OTHER_SPECULATION)
    why = f"{speculation.mode} needs an engine that is built for it"
    instead = f"engine.llm_api.speculative_config: {how}"
    yield Change("lost", "engine.speculative", None, why, instead)


def _kv_cache(edited: EditedText, job: JobFile) -> Iterator[Change]:
    if not edited.has(("engine", "kv_cache_type")):
        return
    edited.remove(("engine", "kv_cache_type"))
    if job.engine.kv_cache_type in (None, "paged"):
        yield Change("dropped", "engine.kv_cache_type", None, "it is always paged")
    else:
        yield Change("lost", "engine.kv_cache_type", None, "the KV cache is always paged", None)


def _by_rules(edited: EditedText, job: JobFile) -> Iterator[Change]:
    """What the data file says of the keys that the job file has."""
    plain = job.model_dump(mode="json")
    for rule in read_data("migration")["rule"]:
        for key in rule["keys"]:
            path = tuple(key.split("."))
            if not edited.has(path):
                continue
            value = _value(plain, path)
            edited.remove(path)
            if "dropped" in rule:
                yield Change("dropped", key, None, rule["dropped"])
            # One instance of what is lost is what there is anyway.
            elif not value or ("lost" in rule and type(value) is int and value == 1):
                yield Change("dropped", key, None, "it asked for nothing")
            elif "lost" in rule:
                yield Change("lost", key, None, rule["lost"], rule.get("instead"))
            else:
                edited.put(tuple(rule["becomes"].split(".")), value)
                yield Change("changed", key, f"{rule['becomes']}: {flow(value)}", _NAME)


def _value(plain: Any, path: Keys) -> Any:
    for word in path:
        plain = plain.get(word) if isinstance(plain, dict) else None
    return plain
