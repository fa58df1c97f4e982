"""Checks of a finished engine, the job file's or the cache's; they run only where there is a job file."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

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


def _gpus_per_node(context: Context, engine: EngineConfig) -> Diagnostic | None:
    if context.job.serve.mode != "leader":
        return None  # each copy of the engine names its GPUs
    layout = context.plan.layout
    return engine_gpus_per_node(engine, layout.world_size, layout.ranks_per_node, layout.gpus_per_node)


def _limits(context: Context, engine: EngineConfig) -> Diagnostic:
    keys = ("max_batch_size", "max_input_len", "max_seq_len", "max_beam_width")
    pairs = [(f"engine.{key}", getattr(context.job.engine, key), getattr(engine, key)) for key in keys]
    batch = context.job.repository.triton_max_batch_size
    pairs.append(("repository.triton_max_batch_size", batch, engine.max_batch_size))
    for key, asked, built in pairs:
        if asked is not None and built is not None and asked > built:
            return fail(f"{key} is {asked}, but the engine was built for {built}", f"lower it to {built}")
    return ok("the job file's limits are within the engine's")


def _paged_context(context: Context, engine: EngineConfig) -> Diagnostic | None:
    key = context.plan.backend.paged_context_key(context.job)
    return None if key is None else paged_context(engine, key)


_Judge = Callable[[Context, EngineConfig], Diagnostic | None]
_OF_ENGINES: dict[str, _Judge] = {
    "engine-world": lambda context, engine: engine_world(engine, context.job.engine.world_size),
    "engine-files": lambda _, engine: engine_files(engine),
    "engine-version": lambda context, engine: engine_version(engine, context.plan.release),
    "engine-gpus-per-node": _gpus_per_node,
    "engine-limits": _limits,
    "paged-context": _paged_context,
}


def _of_every_engine(judge: _Judge, context: Context) -> Diagnostic | None:
    """Judge the engine in the folder."""
    if context.engine_folder is None:
        return None
    engines = context.engines_read
    if engines is None:
        return unknown(f"the engine in {context.engine_folder} cannot be seen on this machine")
    if isinstance(engines, NotAnEngine):
        return fail(str(engines), "set engine.directory to the folder that holds config.json")
    found = [it for engine in engines if (it := judge(context, engine)) is not None]
    return next((it for it in found if it.state == FAIL), found[0] if found else None)


for _name, _judge in _OF_ENGINES.items():
    CHECKS.add(_name, of_job=True)(partial(_of_every_engine, _judge))
