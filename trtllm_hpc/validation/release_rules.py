"""Rules of a job file for its release of TensorRT-LLM."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace

from trtllm_hpc.config.diagnostics import Diagnostics, in_cluster, in_job
from trtllm_hpc.config.validate import UnknownValueError
from trtllm_hpc.errors import Diagnostic
from trtllm_hpc.plan.disaggregated import SERVER
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts
from trtllm_hpc.tensorrt_llm.releases import UnknownRelease

NOWHERE = ", and no release that is known here does"
"""How a refusal ends where no release has an option for the key; another program may do the same."""
LAST_WITH_ENGINES = "1.2.1"
"""The last release with the TensorRT backend and Triton's C++ backend, which TensorRT-LLM #15907 and #15918
removed in June and July 2026."""
_GO_ON = "`trtllm-hpc migrate JOB` writes the job file for engine.backend: pytorch, for any release"
_NO_CONTAINER = (
    "choose a profile with a container of TensorRT-LLM (--cluster), or, where the nodes have it installed, "
    "type --set cluster.container.tensorrt_llm_version=VERSION"
)


def release_is_known(facts: JobFacts) -> Diagnostics:
    """The release of TensorRT-LLM is known from the image's name or a key."""
    error, cluster = facts.unknown_release, facts.cluster
    if error is None:
        return
    if error.is_newer and facts.job.engine.has_engine:
        message = f"{error.message}, and engines ended with TensorRT-LLM {LAST_WITH_ENGINES}"
        error = UnknownRelease(message, hint=_GO_ON, choices=error.choices)
    stated, in_profile = facts.job.engine.tensorrt_llm_version, cluster.container.tensorrt_llm_version
    if stated is None and in_profile is None and cluster.container.runtime == "none":
        message = f"the profile {cluster.name!r} has no container, so nothing tells the TensorRT-LLM"
        yield in_job("release", "engine.tensorrt_llm_version", message, _NO_CONTAINER)
    elif stated is None and in_profile is not None:
        field = "container.tensorrt_llm_version"
        yield in_cluster("release", field, error.message, error.hint, in_profile)
    else:
        yield in_job("release", "engine.tensorrt_llm_version", error.message, error.hint, stated)


def backend_is_there(facts: JobFacts) -> Diagnostics:
    """The release's container has the backend that the job names."""
    job, release = facts.job, facts.release
    if release is None:
        return
    if job.frontend == "openai" and "pytorch" not in release.backends:
        message = f"TensorRT-LLM {release.version} has no {SERVER} for several ranks: it came with 0.19.0"
        yield in_job("release", "serve.frontend", message, "take 0.19.0 or later, or frontend: triton")
    if job.engine.backend in release.backends:
        return
    message = f"the container of TensorRT-LLM {release.version} has no backend {job.engine.backend}"
    hint = f"choose one of {', '.join(release.backends)}, or another release"
    yield in_job("release", "engine.backend", message, hint, job.engine.backend)


def model_has_weights(facts: JobFacts) -> Diagnostics:
    """Synthetic models are made by the reference backend only."""
    job = facts.job
    loads = facts.builds_engine or (job.engine.is_tensorrt_llm and not job.engine.has_engine)
    if loads and job.model.path is None:
        message = f"the backend {job.engine.backend} needs a model's folder"
        hint = "set model.path; synthetic models are for engine.backend: reference"
        yield in_job("missing", "model.path", message, hint, job.model.path)


def family_is_known(facts: JobFacts) -> Diagnostics:
    """The model's family is known from its config.json or model.family."""
    job = facts.job
    if facts.release is None or facts.family is not None or not facts.builds_engine or job.model.path is None:
        return
    from trtllm_hpc.tensorrt_llm.releases.families import families

    model_config = facts.model_config
    if model_config is None:
        config = f"{job.model.path}/config.json"
        message = f"the model's {config} cannot be read here, so nothing tells its family"
        hint = "correct the path; if only the nodes see it, set model.family (--set model.family=llama)"
        yield in_job("unreadable", "model.path", message, hint, job.model.path)
        return
    named = model_config.get("architectures")
    if named:
        message = f"no programs are known for the architecture {named[0]} of the model's config.json"
    else:
        message = "is needed here, since the model's config.json names no architecture"
    hint = f"set it to one of {', '.join(families())}"
    yield in_job("missing", "model.family", message, hint)


def toolchain_exists(facts: JobFacts) -> Diagnostics:
    """The release has programs that build an engine of such a model."""
    if facts.no_toolchain is not None:
        for problem in facts.no_toolchain.diagnostics:
            yield _with_first_able(problem, facts)


def examples_are_known(facts: JobFacts) -> Diagnostics:
    """The folder of upstream's conversion programs is known."""
    if facts.toolchain is None or facts.examples_folder is not None:
        return
    release = facts.toolchain.release
    message = f"where upstream's examples are in the container of TensorRT-LLM {release.version} is not known"
    hint = f"clone TensorRT-LLM v{release.version} and set it to the clone's folder 'examples'"
    yield in_cluster("missing", "container.examples", message, hint)


def keys_have_options(facts: JobFacts) -> Diagnostics:
    """The release's programs have options for every key of the engine."""
    first: dict[str, Diagnostic] = {}
    for lines in facts.command_lines.values():
        for problem in lines.problems:
            first.setdefault(problem.field, problem)  # all options of one key fail for the same reason
    for problem in first.values():
        yield _with_first_able(problem, facts)


def _with_first_able(problem: Diagnostic, facts: JobFacts) -> Diagnostic:
    """The problem, its hint with the first release that builds the engine as the job file has it."""
    able = None
    if problem.code == "release":
        with suppress(UnknownValueError):  # a wrong value of another key must not hide this problem
            able = facts.first_able
    if able is None or re.search(rf"{re.escape(able.version)}(?![.\d])", f"{problem.message} {problem.hint}"):
        return problem
    said = f"the first release that builds this engine is {able.version}"
    hint = f"{problem.hint}; {said}" if problem.hint else said
    return replace(problem, message=problem.message.removesuffix(NOWHERE), hint=hint)


def raw_options_are_taken(facts: JobFacts) -> Diagnostics:
    """Extra options exist in the release, and no key sets them."""
    if facts.toolchain is not None:
        from trtllm_hpc.tensorrt_llm.command_lines.raw_options import raw_problems

        yield from raw_problems(facts.job, facts.toolchain)


def experts_divide(facts: JobFacts) -> Diagnostics:
    """moe_tensor_parallel times moe_expert_parallel is tensor_parallel."""
    job = facts.job
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
