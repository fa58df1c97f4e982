"""TensorRT-LLM's engines: upstream's programs as the steps of a build.

Which programs a release has and what a job file's keys are called in them is
told by ``config.spelling``; here the words get their folders and their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.errors import RenderError
from trtllm_hpc.plan.backends.build import build_py_step, build_step
from trtllm_hpc.plan.backends.convert import convert_step, prepare_step, quantize_step
from trtllm_hpc.plan.backends.lora import lora_step
from trtllm_hpc.plan.backends.steps import Making
from trtllm_hpc.plan.layout import Layout
from trtllm_hpc.runtime.engine_cache.recipe import BuildStep
from trtllm_hpc.tensorrt_llm.command_lines.compile import spell
from trtllm_hpc.tensorrt_llm.command_lines.raw_options import raw_notes
from trtllm_hpc.tensorrt_llm.command_lines.toolchain import NoRoute, Route, find_route
from trtllm_hpc.tensorrt_llm.releases import Release
from trtllm_hpc.tensorrt_llm.releases.families import find_family

STEPS = {
    "prepare": prepare_step,
    "convert": convert_step,
    "quantize": quantize_step,
    "build": build_step,
    "build_py": build_py_step,
}
"""What makes the step of each program."""


def make_steps(
    job: JobFile,
    cluster: ClusterProfile,
    release: Release,
    layout: Layout,
    model_config: Mapping[str, Any] | None,
) -> tuple[BuildStep, ...]:
    """The steps from the model to its engine, which is the output of the last.

    Args:
        layout: of the serve stage: an engine of several ranks is told the GPUs of a node.
        model_config: the model's ``config.json``, where it could be read.

    Raises:
        RenderError: the release cannot build it. Files that were loaded have
            been judged already, with every reason at once.
    """
    making = Making(job, cluster, release, layout, _route(job, release, model_config), model_config)
    steps = [STEPS[program.role](making) for program in making.route.programs]
    if job.engine.lora.adapters:
        steps.insert(0, lora_step(making))
    return tuple(steps)


def make_notes(job: JobFile, release: Release, model_config: Mapping[str, Any] | None) -> tuple[str, ...]:
    """What a person should know of these steps, though nothing is wrong with them."""
    if job.engine.directory is not None or not job.engine.has_engine:
        return ()
    route = _route(job, release, model_config)
    return (*spell(job, route, model_config).notes, *raw_notes(job, route))


def _route(job: JobFile, release: Release, model_config: Mapping[str, Any] | None) -> Route:
    family = find_family(job.model.family, model_config)
    if family is None:
        raise RenderError(
            "Whose programs convert the model is not known: its config.json cannot be read here.",
            hint="set model.family in the job file, e.g. to llama",
        )
    try:
        return find_route(job, release, family)
    except NoRoute as error:
        raise RenderError(f"{error.key}: {error.message}.", hint=error.hint) from None
