"""Checks of a job file: layout, model, memory, companion and finished engine."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtllm_hpc.config.hub import HUB_NAME, record_of
from trtllm_hpc.errors import ConfigError, Diagnostic, fail, ok, unknown, warn
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.checks import (
    engine_files,
    engine_gpus_per_node,
    engine_version,
    engine_world,
    is_lfs_pointer,
    paged_context,
    tokenizer_files,
)
from trtllm_hpc.runtime.engine_config import EngineConfig, NotAnEngine
from trtllm_hpc.validation.context import Check, Context
from trtllm_hpc.validation.file_system_checks import absent

if TYPE_CHECKING:
    from trtllm_hpc.tensorrt_llm.memory import MemoryPlan, UnknownModel

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_LAYER = re.compile(rb'"(?:[\w.]+\.)?(?:layers|h|blocks?)\.(\d+)\.')
"""Matches the number of a layer in the name of a tensor."""
_LEAST_BYTES = 1024
"""Smallest size of a weights file, in bytes; Git LFS pointers are smaller."""


def divides(context: Context) -> Diagnostic | None:
    """The ranks can split heads, layers and experts evenly, as TensorRT-LLM requires."""
    if context.job.engine.world_size == 1:
        return None
    config, engine = context.model_config, context.job.engine
    if config is None:
        return unknown("the model's config.json cannot be read on this machine")
    from trtllm_hpc.tensorrt_llm.memory import UnknownModel, parallel_of, read_shape

    try:
        shape = read_shape(config)
    except UnknownModel as error:
        return unknown(str(error))
    tensor, pipeline = engine.tensor_parallel * engine.context_parallel, engine.pipeline_parallel
    heads, hint = shape.heads, "set engine.tensor_parallel to a divisor of"
    if heads % tensor:
        return fail(f"{heads} attention heads cannot be split over {tensor} ranks", f"{hint} {heads}")
    if shape.kv_heads % tensor and tensor % shape.kv_heads:
        message = f"{shape.kv_heads} KV heads cannot be split over {tensor} ranks"
        return fail(message, f"{hint} {shape.kv_heads}")
    if shape.layers % pipeline:
        message = f"{shape.layers} layers cannot be split evenly by engine.pipeline_parallel {pipeline}"
        hint = f"set engine.pipeline_parallel to a divisor of {shape.layers}"
        return warn(f"{message}, which older releases refuse", hint)
    if shape.experts % (expert := parallel_of(engine).expert):
        message = f"{shape.experts} experts cannot be split evenly by engine.moe_expert_parallel {expert}"
        return fail(message, f"set engine.moe_expert_parallel to a divisor of {shape.experts}")
    return ok(f"the ranks can split {heads} heads and {shape.layers} layers evenly")


def slo(context: Context) -> Diagnostic | None:
    """Answers are streamed if the benchmark's SLO limits token times, so that it does not fail later."""
    benchmark = context.job.companion.benchmark if context.job.companion.enabled else None
    if benchmark is None or benchmark.slo is None:
        return None
    from trtllm_hpc.bench.analysis.slo import parse_slo

    limits = parse_slo(benchmark.slo)
    # Triton streams only from decoupled models; trtllm-serve always can.
    streams = context.plan.server.spec.driver != "triton" or context.job.repository.decoupled
    unstreamed = None if streams else "repository.decoupled"
    if unstreamed is None and benchmark.streaming is False:
        unstreamed = "companion.benchmark.streaming"
    if limits.needing_streaming and unstreamed is not None:
        return fail(
            f"limits on {', '.join(limits.needing_streaming)} need streamed answers, "
            f"but {unstreamed} is false",
            f"set {unstreamed} to true, or limit the latency instead (companion.benchmark.slo: latency<1s)",
        )
    return ok(f"the benchmark's limits are {limits}")


def workload_file(context: Context) -> Diagnostic | None:
    """The benchmark's file is valid, if this machine can read it; the companion reads it on its node."""
    benchmark = context.job.companion.benchmark if context.job.companion.enabled else None
    file = None if benchmark is None else benchmark.workload.path
    if benchmark is None or file is None:
        return None
    if not Path(file).is_file():
        message = f"the workload file {file} is not on this machine"
        return warn(message, "check that the companion's node can read it")
    from trtllm_hpc.bench.workload.build import check_file

    try:
        check_file(benchmark.workload)
    except ConfigError as error:
        first, *others = error.diagnostics
        where = first.file if first.line is None else f"{first.file}:{first.line}"
        more = f" (and {len(others)} more)" if others else ""
        message = f"{where}: {' '.join(first.message.split()).rstrip('.')}{more}"
        return fail(message, first.hint or "correct the file")
    return ok(f"the benchmark's workload file {file} is valid")


def evaluation(context: Context) -> Diagnostic | None:
    """This machine has the evaluation's tasks, libraries and data, and the run to compare with."""
    settings = context.job.companion.evaluate
    if settings is None or not context.job.companion.enabled:
        return None
    from trtllm_hpc.evaluation.scores import read_evaluation
    from trtllm_hpc.evaluation.tasks import check_task, data_folder

    try:
        for task in settings.tasks:
            check_task(task, settings)
    except ConfigError as error:
        wrong = error.diagnostics[0]
        return fail(wrong.message, wrong.hint or "name another task")
    base = settings.not_worse_than
    if base is not None and read_evaluation(RunPaths(context.runs / base).evaluation()) is None:
        message = f"the run {base} (companion.evaluate.not_worse_than) has no finished evaluation"
        return fail(
            f"{message} in {context.runs}", "set it to the ID or folder of a run with evaluation scores"
        )
    tasks = ", ".join(settings.tasks)
    return ok(f"the evaluation of {tasks} is possible, with data in {data_folder(settings)}")


def model_files(context: Context) -> Diagnostic | None:
    """The model's folder has a configuration and all weights in its index."""
    if context.job.model.path is None or context.job.engine.directory is not None:
        return None
    folder, file = context.model_folder, context.path_here(context.job.model.path)
    if os.access(file, os.F_OK) and file.is_file():
        return fail(f"model.path {file} is a file", f"set model.path to its folder, {file.parent}")
    if folder is None:
        problem, name = absent(context, context.job.model.path, "model.path"), "/".join(file.parts[-2:])
        # A typed ORG/NAME has become a path below the job file's folder.
        looks_relative = len(file.parts) > 3 and file.parents[1].is_dir() and not file.parent.exists()
        if looks_relative and HUB_NAME.fullmatch(name):
            return replace(problem, hint=f"{problem.hint}; for the model of the Hub: --set model.hub={name}")
        return problem
    if context.model_config is None:
        message = f"there is no readable config.json in {folder}"
        return fail(message, "set model.path to the model's folder")
    finish = "finish the model's download"
    if context.plan.backend.loaded_model(context.job, RunPaths(context.plan.run_folder)) is not None:
        finish += "; for a server with random weights (load format dummy): --ignore model-files"
    record = record_of(folder)
    if record is not None and (missing := record.missing(folder)):
        size = sum(size for size, _ in missing.values()) / 2**30
        message = f"{size:.2f} GiB of {record.hub} are not downloaded yet; its small files are"
        return ok(f"{message}, and render and submit download the rest first")
    names = _weights(folder)
    if not names:
        return fail(f"there are no weights (*.safetensors, *.bin) in {folder}", finish)
    for name in names:
        file = folder / name
        if not file.is_file():
            message = f"the index of weights lists {name}, which is missing in {folder}"
            return fail(message, finish)
        size = file.stat().st_size
        if size < _LEAST_BYTES:
            if is_lfs_pointer(file):
                message = f"{file} is a Git LFS pointer instead of the file"
                return fail(message, f"type git lfs pull in {folder}")
            return fail(f"{file} has only {size} bytes, too few for weights", finish)
    if wrong := _wrong_layers(context.model_config, folder):
        return fail(wrong, f"correct {folder / 'config.json'}, or download the model again")
    return ok(f"all weights of the model are there ({len(names)} file{'s' * (len(names) > 1)})")


def _wrong_layers(config: Mapping[str, Any], folder: Path) -> str | None:
    """Return an error if the number of layers is invalid, or above that of the weights."""
    layers = config.get("num_hidden_layers")
    if layers is None:
        return None
    if not isinstance(layers, int) or layers < 1:
        return f"num_hidden_layers in {folder / 'config.json'} is {layers!r}, not a whole number above 0"
    indexes = [folder / name for name in _INDEXES if (folder / name).is_file()]
    stored = 0
    for source in indexes or folder.glob("*.safetensors"):
        with source.open("rb") as file:  # safetensors begins with the length of its header
            size = -1 if indexes else min(int.from_bytes(file.read(8), "little"), 100 << 20)
            stored = max([stored, *(int(number) + 1 for number in _LAYER.findall(file.read(size)))])
    wrong = f"config.json in {folder} has {layers} layers, but the weights have {stored}"
    return wrong if 0 < stored < layers else None


def _weights(folder: Path) -> list[str]:
    """Return the files in the index of weights, or in the folder if there is no index."""
    for name in _INDEXES:
        try:
            index = json.loads((folder / name).read_text(encoding="utf-8"))
            return sorted(set(index["weight_map"].values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # a missing or unreadable index
    return sorted(file.name for ending in ("safetensors", "bin") for file in folder.glob(f"*.{ending}"))


def tokenizer(context: Context) -> Diagnostic | None:
    """The tokenizer's folder is complete, because compute nodes may not reach the Hub."""
    if context.plan.backend.release_use == "none":
        return None
    path = context.plan.backend.tokenizer(context.job)
    if path is None:
        message = "there is no tokenizer: model.tokenizer is not set, and an engine has none"
        return fail(message, "set model.tokenizer to the folder of the model's tokenizer")
    folder = context.path_here(path)
    if not folder.exists():
        return unknown(f"the tokenizer's folder {path} is not visible on this machine")
    return tokenizer_files(folder)


def memory_of(context: Context) -> MemoryPlan | UnknownModel | None:
    """Return the memory plan, or the reason for none; ``None`` without the model's ``config.json``."""
    config, model = context.model_config, context.plan.backend.memory
    if config is None or model is None:
        return None
    from trtllm_hpc.tensorrt_llm.memory import UnknownModel, plan_memory

    try:
        release, stored = context.plan.facts.release, _stored_size(context, config)
        return plan_memory(context.job, context.cluster, config, release, model, stored)
    except UnknownModel as error:
        return error


def _stored_size(context: Context, config: Mapping[str, Any]) -> int | None:
    """Return the size in bytes of a checkpoint whose matrices the planner cannot sum up, else ``None``.

    Raises UnknownModel for a quantized checkpoint of unknown size.
    """
    from trtllm_hpc.tensorrt_llm.job_facts import Checkpoint
    from trtllm_hpc.tensorrt_llm.memory import FAMILIES, UnknownModel

    if context.model_folder is None or context.job.engine.quantization.method is not None:
        return None
    with suppress(ConfigError):
        checkpoint = Checkpoint(context.model_folder)
        if (method := checkpoint.quantization) != "none" and checkpoint.stored is None:
            message = f"the checkpoint is quantized ({method}) and has no index of its weights"
            raise UnknownModel(f"{message}, so its size is unknown")
        if method != "none" or config.get("model_type") not in FAMILIES:
            return checkpoint.stored
    return None


def memory(context: Context) -> Diagnostic | None:
    """A rank's memory holds weights, buffers and a KV cache for the longest requests."""
    if not (context.job.model.path or context.job.model.synthetic):
        return None
    if context.plan.backend.memory is None:
        return unknown(f"the memory use of {context.plan.server.spec.leader[0]} is unknown")
    plan = memory_of(context)
    if plan is None:
        return unknown("the model's config.json cannot be read on this machine, so its memory use is unknown")
    if isinstance(plan, Exception):
        return unknown(str(plan))
    return Diagnostic("memory", plan.sentence, hint=plan.remedy, state=plan.verdict)


def is_there(context: Context) -> Diagnostic | None:
    """The engine's folder exists, as far as this machine can see."""
    path = context.engine_folder
    if path is None:
        return None
    folder = context.path_here(path)
    if folder.is_file():
        return fail(f"{path} is a file", f"set engine.directory to its folder, {folder.parent}")
    if folder.exists():
        return ok(f"{path} exists")
    if not os.access(folder.parent, os.R_OK | os.X_OK):
        return unknown(f"{path} is not visible on this machine")
    message = f"there is no {folder}, although this machine can read {folder.parent}"
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
    return ok("the job file's sizes are within the engine's limits")


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


def _of_engine(judge: _Judge, context: Context) -> Diagnostic | None:
    if context.engine_folder is None:
        return None
    if context.engine is None:
        return unknown(f"the engine in {context.engine_folder} is not visible on this machine")
    if isinstance(context.engine, NotAnEngine):
        return fail(str(context.engine), "set engine.directory to the folder that contains config.json")
    return judge(context, context.engine)


CHECKS = (
    Check("model-divides", divides, of_job=True),
    Check("slo", slo, of_job=True),
    Check("workload-file", workload_file, of_job=True),
    Check("evaluation", evaluation, of_job=True),
    Check("model-files", model_files, of_job=True),
    Check("tokenizer", tokenizer, of_job=True),
    Check("memory", memory, of_job=True),
    Check("engine-folder", is_there, of_job=True),
    *(Check(name, partial(_of_engine, judge), of_job=True) for name, judge in _OF_ENGINES.items()),
)
