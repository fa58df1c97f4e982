"""Checks of a finished engine, the job file's or the cache's; they run only where there is a job file."""

from __future__ import annotations

import os
from collections.abc import Callable

from trtllm_hpc.errors import FAIL, Diagnostic, fail, ok, unknown
from trtllm_hpc.runtime.checks import (
    engine_files,
    engine_gpus_per_node,
    engine_version,
    engine_world,
    paged_context,
)
from trtllm_hpc.runtime.engine_config import EngineConfig, NotAnEngine
from trtllm_hpc.validation.context import Checks, Context

CHECKS = Checks()
EngineJudge = Callable[[Context, EngineConfig], Diagnostic]


def engine_check(
    name: str, applies: Callable[[Context], bool] = lambda context: True
) -> Callable[[EngineJudge], EngineJudge]:
    """Register a check of every engine in the folder (an encoder-decoder model has two); a decorator.

    A failure counts first.
    """

    def register(judge: EngineJudge) -> EngineJudge:
        CHECKS.add(name, of_job=True)(lambda context: judged(context, judge))
        return judge

    def judged(context: Context, judge: EngineJudge) -> Diagnostic | None:
        if context.engine_folder is None or not applies(context):
            return None
        engines = context.engines_read
        if engines is None:
            return unknown(f"the engine in {context.engine_folder} cannot be seen on this machine")
        if isinstance(engines, NotAnEngine):
            return fail(str(engines), "set engine.directory to the folder that holds config.json")
        found = [judge(context, engine) for engine in engines]
        return next((outcome for outcome in found if outcome.state == FAIL), found[0])

    return register


@CHECKS.add("engine-folder", of_job=True)
def is_there(context: Context) -> Diagnostic | None:
    """The folder exists, as far as this machine can see."""
    named = context.engine_folder
    if named is None:
        return None
    folder = context.path_here(named)
    if folder.is_file():
        return fail(f"{named} is a file", f"set engine.directory to its folder, {folder.parent}")
    if folder.exists():
        return ok(f"{named} is there")
    if not os.access(folder.parent, os.R_OK | os.X_OK):
        return unknown(f"{named} cannot be seen on this machine")
    message = f"there is no {folder}, though {folder.parent} can be read here"
    return fail(message, "set engine.directory to the folder of a finished engine")


@engine_check("engine-world")
def world(context: Context, engine: EngineConfig) -> Diagnostic:
    """The engine is for the ranks of the job file."""
    return engine_world(engine, context.job.engine.world_size)


@engine_check("engine-files")
def files(context: Context, engine: EngineConfig) -> Diagnostic:
    """The engine is whole."""
    return engine_files(engine)


@engine_check("engine-version")
def version(context: Context, engine: EngineConfig) -> Diagnostic:
    """Engine and container are of one release."""
    return engine_version(engine, context.plan.release)


# In other modes than leader each copy of the engine names its GPUs.
@engine_check("engine-gpus-per-node", lambda context: context.job.serve.mode == "leader")
def gpus_per_node(context: Context, engine: EngineConfig) -> Diagnostic:
    """The engine's number of GPUs on a node is that of the layout."""
    layout = context.plan.layout
    return engine_gpus_per_node(engine, layout.world_size, layout.ranks_per_node, layout.gpus_per_node)


@engine_check("engine-limits")
def limits(context: Context, engine: EngineConfig) -> Diagnostic:
    """The job file's limits are not above the engine's."""
    keys = ("max_batch_size", "max_input_len", "max_seq_len", "max_beam_width")
    pairs = [(f"engine.{key}", getattr(context.job.engine, key), getattr(engine, key)) for key in keys]
    batch = context.job.repository.triton_max_batch_size
    pairs.append(("repository.triton_max_batch_size", batch, engine.max_batch_size))
    for key, asked, built in pairs:
        if asked is not None and built is not None and asked > built:
            return fail(f"{key} is {asked}, but the engine was built for {built}", f"lower it to {built}")
    return ok("the job file's limits are within the engine's")


def _paged_context_key(context: Context) -> str | None:
    return context.plan.backend.paged_context_key(context.job)


@engine_check("paged-context", lambda context: _paged_context_key(context) is not None)
def reuse(context: Context, engine: EngineConfig) -> Diagnostic:
    """Prompts are computed over a paged cache, where reuse or chunked context needs that."""
    return paged_context(engine, _paged_context_key(context) or "")
