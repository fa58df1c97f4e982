"""Rules for Triton: the section ``repository`` for the release, and copies of an engine on one node."""

from __future__ import annotations

from collections.abc import Iterator

from trtllm_hpc.config.diagnostics import Diagnostics, dotted, in_job, nearest
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.config.rules import Requires
from trtllm_hpc.config.types import Section
from trtllm_hpc.engines.facts import EngineFacts
from trtllm_hpc.engines.template_values import (
    GROUPS,
    KEYS,
    PLANNED,
    as_words,
    default_of,
    placeholders,
    value_of,
)
from trtllm_hpc.tensorrt_llm.releases.placeholders import known_placeholders
from trtllm_hpc.tensorrt_llm.releases.release import Release

_FIRST_RELEASE = {
    # launch_triton_server.py has --multi-model since backend v0.9.0.
    "orchestrator": "0.9.0",
    # all_models/disaggregated_serving exists since backend v0.15.0.
    "disaggregated": "0.15.0",
}


def repository_keys_exist(facts: EngineFacts) -> Diagnostics:
    """A key for upstream's templates must be a placeholder of the release's templates."""
    job, release = facts.job, facts.release
    if release is None:
        return
    for key, places in KEYS.items():
        value = value_of(job, key)
        if value is None or value == default_of(key):
            continue
        candidates = (placeholders(release, model).get(name) for model, name in places)
        here = next(filter(None, candidates), None)
        if here is None:
            message = f"TensorRT-LLM {release.version} has no {places[0][1]}{_history(release, *places[0])}"
            yield in_job("conflict", key, message, "remove it, or use another release", value)
        elif misfit := here.misfit(as_words(value)):
            message = f"{misfit} in TensorRT-LLM {release.version}"
            yield in_job("bad-value", key, message, "choose another value", value)


def repository_parameters_exist(facts: EngineFacts) -> Diagnostics:
    """``repository.parameters`` must have placeholders of the release, and none that another key fills."""
    job, release = facts.job, facts.release
    if release is None:
        return
    copies = {copy.name: "tensorrt_llm" for copy in job.repository.models}
    if job.serve.mode == "disaggregated":
        copies |= {"context": "tensorrt_llm", "generation": "tensorrt_llm"}
    for name, values in job.repository.parameters.items():
        model = name if name in GROUPS else copies.get(name)
        if model is None:
            known = ", ".join([*GROUPS, *copies])
            message = f"{name!r} is not a model of the repository"
            field = dotted(("repository", "parameters", name))
            yield in_job("bad-value", field, message, f"choose one of {known}")
            continue
        here = placeholders(release, model)
        ever = known_placeholders(release.version, GROUPS[model], model)
        for key, value in values.items():
            field = dotted(("repository", "parameters", name, key))
            if (model, key) in PLANNED:
                message = f"is set by {PLANNED[model, key]}"
                yield in_job("conflict", field, message, f"set {PLANNED[model, key]} instead", value)
            elif key in here:
                misfit = here[key].misfit(value) if value is not None else None
                misfit = "must have a value" if value is None and here[key].required else misfit
                if misfit:
                    message = f"{misfit} in TensorRT-LLM {release.version}"
                    yield in_job("bad-value", field, message, "choose another value", value)
            elif key in ever:
                message = f"TensorRT-LLM {release.version} has no {key}{_history(release, model, key)}"
                yield in_job("conflict", field, message, "remove it, or use another release", value)
            elif near := nearest(key, here, cutoff=0.8):
                message = f"{key!r} is not a placeholder of {model} in TensorRT-LLM {release.version}"
                yield in_job("unknown-key", field, message, f"did you mean {near}?", value)
            # Any other name may be a placeholder of an unknown template; filling the template checks that.


def _history(release: Release, model: str, name: str) -> str:
    """Return the placeholder's first or last release, as a clause after "has no NAME"."""
    known = known_placeholders(release.version, GROUPS[model], model).get(name)
    if known is None:
        return ""
    if not release.at_least(known.since):
        return f", which came with {known.since}"
    return f", which went after {known.until}" if known.until is not None else ""


# Several copies -----------------------------------------------------------------------


def mode_is_there(facts: EngineFacts) -> Diagnostics:
    """Modes other than leader need one node, and a release that has them."""
    job, mode, release = facts.job, facts.job.serve.mode, facts.release
    if job.serve.nodes not in (None, 1):
        message = f"serve.mode {mode} serves on one node only"
        yield in_job("conflict", "serve.nodes", message, "leave serve.nodes out", job.serve.nodes)
    first = _FIRST_RELEASE[mode]
    if release is not None and not release.at_least(first):
        message = f"TensorRT-LLM {release.version} has no mode {mode}: it came with {first}"
        yield in_job("conflict", "serve.mode", message, f"take {first} or later, or leader mode", mode)


def phases_have_gpus(facts: EngineFacts) -> Diagnostics:
    """Disaggregated serving with Triton needs the GPUs of both phases, and no keys of ``trtllm-serve``."""
    phases = facts.job.serve.disaggregated
    both = () if phases is None else (phases.context.instances, phases.generation.instances)
    if not both or not all(both):
        message = "serve.mode disaggregated needs the GPUs of both phases"
        hint = "write {context: {instances: [[0]]}, generation: {instances: [[1]]}}"
        yield in_job("missing", "serve.disaggregated", message, hint)
    if phases is None:
        return
    parts: list[tuple[str, Section, tuple[str, ...]]] = [("", phases, ("context", "generation"))]
    parts += [(f".{name}", phase, ("engine", "instances")) for name, phase in phases.roles]
    for name, part, own in parts:
        for key, field in type(part).model_fields.items():
            value = getattr(part, key)
            if key not in own and value != field.get_default(call_default_factory=True):
                message = "has no effect with Triton, only with serve.frontend: openai"
                yield in_job("conflict", f"serve.disaggregated{name}.{key}", message, "remove it", value)


def copies_have_gpus(facts: EngineFacts) -> Diagnostics:
    """Each copy of the engine needs its own GPUs, one for each rank, and the node must have them."""
    job, cluster = facts.job, facts.cluster
    taken: dict[int, str] = {}
    available = cluster.gpus_per_node
    for field, gpus, world in _copies(job):
        if len(gpus) != world:
            message = f"{len(gpus)} GPUs for an engine of {world} rank{'s' * (world != 1)}"
            yield in_job("conflict", field, message, f"name {world} of them, or the copy's own engine", gpus)
        for gpu in gpus:
            if available and gpu >= available:
                message = f"a node of {cluster.name!r} has no GPU {gpu}: its {available} are counted from 0"
                yield in_job("conflict", field, message, f"name GPUs below {available}", gpus)
            if gpu in taken:
                message = f"GPU {gpu} is already taken by {taken[gpu]}"
                yield in_job("conflict", field, message, "give each copy GPUs of its own", gpus)
            taken.setdefault(gpu, field)


def copies_have_names(facts: EngineFacts) -> Diagnostics:
    """Two models of a repository cannot share a name."""
    names = [copy.name for copy in facts.job.repository.models]
    for number, name in enumerate(names):
        if name in names[:number]:
            field = f"repository.models[{number}].name"
            yield in_job("conflict", field, f"{name!r} is there already", "give each copy another name", name)


def _copies(job: JobFile) -> Iterator[tuple[str, list[int], int]]:
    """Yield the field, the GPUs, and the ranks of the copy's engine."""
    built = job.engine.world_size
    for number, copy in enumerate(job.repository.models):
        gpus = copy.gpu_device_ids
        yield f"repository.models[{number}].gpu_device_ids", gpus, built if copy.engine is None else len(gpus)
    phases = job.serve.disaggregated
    if phases is None:
        return
    for name, phase in phases.roles:
        for number, gpus in enumerate(phase.instances):
            # The number of ranks of a finished engine is taken from its first copy.
            expected = built if phase.engine is None else len(phase.instances[0])
            yield f"serve.disaggregated.{name}.instances[{number}]", gpus, expected


OF_REPOSITORY = (
    Requires("engine.backend", "model.tokenizer model.path",
             "neither a tokenizer nor a model with one is named", "name the tokenizer's folder",
             code="missing", at="model.tokenizer"),
    *(repository_keys_exist, repository_parameters_exist),
)  # fmt: skip
OF_ORCHESTRATOR = (mode_is_there, copies_have_gpus, copies_have_names)
OF_PHASES = (mode_is_there, phases_have_gpus, copies_have_gpus)
