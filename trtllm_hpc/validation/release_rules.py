"""What is wrong with a job file for the release of TensorRT-LLM that it is of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.diagnostics import Diagnostics, in_cluster, in_job
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.errors import Diagnostic
from trtllm_hpc.tensorrt_llm.model_config import read_model_config

if TYPE_CHECKING:
    # What is known of releases is read only for jobs that are of one.
    from trtllm_hpc.tensorrt_llm.command_lines.toolchain import Route
    from trtllm_hpc.tensorrt_llm.releases import Release
    from trtllm_hpc.tensorrt_llm.releases.families import Family


_NO_CONTAINER = (
    "choose a profile with a container of TensorRT-LLM (--cluster), or, where the nodes have it installed, "
    "type --set cluster.container.tensorrt_llm_version=VERSION"
)


@dataclass(frozen=True)
class Facts:
    """What a job file and a profile mean together."""

    release: Release
    family: Family | None
    model_config: Mapping[str, Any] | None


def facts(job: JobFile, cluster: ClusterProfile) -> Facts | None:
    """``None`` for the reference backend, and where the release is not known."""
    if not job.engine.is_tensorrt_llm:
        return None
    from trtllm_hpc.tensorrt_llm.release_of_job import release_of
    from trtllm_hpc.tensorrt_llm.releases import UnknownRelease
    from trtllm_hpc.tensorrt_llm.releases.families import find_family

    try:
        release = release_of(job, cluster)
    except UnknownRelease:
        return None
    assert release is not None
    model_config = read_model_config(job.model.path)
    return Facts(release, find_family(job.model.family, model_config), model_config)


def route_of(job: JobFile, cluster: ClusterProfile) -> tuple[Facts, Route] | None:
    """The programs that build this job's engine; ``None`` where none is built or can be."""
    known = facts(job, cluster)
    if known is None or known.family is None or not builds(job):
        return None
    from trtllm_hpc.tensorrt_llm.command_lines.toolchain import NoRoute, find_route

    try:
        return known, find_route(job, known.release, known.family)
    except NoRoute:
        return None


def builds(job: JobFile) -> bool:
    """Whether the job has an engine of TensorRT-LLM to build."""
    return job.engine.is_tensorrt_llm and job.engine.has_engine and job.engine.directory is None


def release_is_known(job: JobFile, cluster: ClusterProfile) -> Diagnostics:
    """The image's name or a key must tell which TensorRT-LLM computes."""
    if not job.engine.is_tensorrt_llm:
        return
    from trtllm_hpc.tensorrt_llm.release_of_job import release_of
    from trtllm_hpc.tensorrt_llm.releases import UnknownRelease

    try:
        release_of(job, cluster)
    except UnknownRelease as error:
        stated, in_profile = job.engine.tensorrt_llm_version, cluster.container.tensorrt_llm_version
        if stated is None and in_profile is None and cluster.container.runtime == "none":
            message = f"the profile {cluster.name!r} has no container, so nothing tells the TensorRT-LLM"
            yield in_job("release", "engine.tensorrt_llm_version", message, _NO_CONTAINER)
        elif stated is None and in_profile is not None:
            field = "container.tensorrt_llm_version"
            yield in_cluster("release", field, error.message, error.hint, in_profile)
        else:
            yield in_job("release", "engine.tensorrt_llm_version", error.message, error.hint, stated)


def backend_is_there(job: JobFile, cluster: ClusterProfile) -> Diagnostics:
    """The release's container has the backend that the job names."""
    known = facts(job, cluster)
    if known is None or job.engine.backend in known.release.backends:
        return
    message = f"the container of TensorRT-LLM {known.release.version} has no backend {job.engine.backend}"
    hint = f"choose one of {', '.join(known.release.backends)}, or another release"
    yield in_job("release", "engine.backend", message, hint, job.engine.backend)


def model_has_weights(job: JobFile, cluster: ClusterProfile) -> Diagnostics:
    """Synthetic models are made by the reference backend only."""
    loads = builds(job) or job.engine.backend == "llmapi"
    if loads and job.model.path is None:
        message = f"the backend {job.engine.backend} needs a model's folder"
        hint = "set model.path; synthetic models are for engine.backend: reference"
        yield in_job("missing", "model.path", message, hint, job.model.path)


def family_is_known(job: JobFile, cluster: ClusterProfile) -> Diagnostics:
    """The model's config.json or model.family tells whose programs convert it."""
    known = facts(job, cluster)
    if known is None or known.family is not None or not builds(job) or job.model.path is None:
        return
    from trtllm_hpc.tensorrt_llm.releases.families import families

    if known.model_config is None:
        config = f"{job.model.path}/config.json"
        message = f"the model's {config} cannot be read here, so nothing tells its family"
        hint = "mend the path; if the nodes see it only, set model.family (--set model.family=llama)"
        yield in_job("unreadable", "model.path", message, hint, job.model.path)
        return
    named = known.model_config.get("architectures")
    if named:
        message = f"no programs are known for the architecture {named[0]} of the model's config.json"
    else:
        message = "is needed here, since the model's config.json names no architecture"
    hint = f"set it to one of {', '.join(families())}"
    yield in_job("missing", "model.family", message, hint)


def route_exists(job: JobFile, cluster: ClusterProfile) -> Diagnostics:
    """The release has programs that build an engine of such a model."""
    known = facts(job, cluster)
    if known is None or known.family is None or not builds(job):
        return
    from trtllm_hpc.tensorrt_llm.command_lines.toolchain import NoRoute, find_route

    try:
        find_route(job, known.release, known.family)
    except NoRoute as error:
        yield in_job("release", error.key, error.message, error.hint)


def examples_are_known(job: JobFile, cluster: ClusterProfile) -> Diagnostics:
    """Where upstream's conversion programs lie must be known."""
    found = route_of(job, cluster)
    if found is None or cluster.container.examples or found[0].release.paths.examples:
        return
    release = found[0].release
    message = f"where upstream's examples are in the container of TensorRT-LLM {release.version} is not known"
    hint = f"clone TensorRT-LLM v{release.version} and set it to the clone's folder 'examples'"
    yield in_cluster("missing", "container.examples", message, hint)


def keys_have_words(job: JobFile, cluster: ClusterProfile) -> Diagnostics:
    """Every key of the engine can be said to the release's programs."""
    found = route_of(job, cluster)
    if found is None:
        return
    from trtllm_hpc.tensorrt_llm.command_lines.compile import spell
    from trtllm_hpc.tensorrt_llm.command_lines.encoder_decoder import PARTS

    known, route = found
    parts = PARTS if route.family.encoder_decoder or job.engine.encoder_decoder else (None,)
    problems = [it for part in parts for it in spell(job, route, known.model_config, part).problems]
    yield from _once(problems)


def _once(problems: Sequence[Diagnostic]) -> Iterator[Diagnostic]:
    """One problem a key: the words of one key fail for one reason."""
    seen = set()
    for problem in problems:
        if problem.field not in seen:
            seen.add(problem.field)
            yield problem


def raw_options_are_taken(job: JobFile, cluster: ClusterProfile) -> Diagnostics:
    """Further options exist in the release, and are not those that a key sets."""
    found = route_of(job, cluster)
    if found is not None:
        from trtllm_hpc.tensorrt_llm.command_lines.raw_options import raw_problems

        yield from raw_problems(job, found[1])


def experts_divide(job: JobFile, cluster: ClusterProfile) -> Diagnostics:
    """The ranks that split experts and those that hold different ones are the tensor parallel ranks."""
    engine = job.engine
    split, spread = engine.moe_tensor_parallel, engine.moe_expert_parallel
    if split is None and spread is None:
        return
    product = (split or 1) * (spread or 1)
    if split is not None and spread is not None and product != engine.tensor_parallel:
        message = f"{split} * moe_expert_parallel {spread} is {product}, not tensor_parallel"
        hint = f"the product of the two must be engine.tensor_parallel, {engine.tensor_parallel}"
        yield in_job("conflict", "engine.moe_tensor_parallel", message, hint, split)
    elif engine.tensor_parallel % product:
        key = "moe_tensor_parallel" if split is not None else "moe_expert_parallel"
        message = f"{product} does not divide engine.tensor_parallel, {engine.tensor_parallel}"
        hint = "set it to a divisor, or set both; their product is engine.tensor_parallel"
        yield in_job("conflict", f"engine.{key}", message, hint, product)


RULES: Sequence[Callable[[JobFile, ClusterProfile], Diagnostics]] = (
    release_is_known,
    backend_is_there,
    model_has_weights,
    family_is_known,
    route_exists,
    examples_are_known,
    keys_have_words,
    raw_options_are_taken,
    experts_divide,
)
