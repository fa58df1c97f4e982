"""Checks of an engine: is it whole, is it of this release, is it built for these ranks and nodes?"""

from __future__ import annotations

import importlib.metadata
import re

from trtllm_hpc.errors import Diagnostic, fail, ok, unknown, warn
from trtllm_hpc.runtime.checks.engine_config import EngineConfig

_AGAIN = "build it again"


def engine_world(engine: EngineConfig, world_size: int) -> Diagnostic:
    """An engine has a part for each rank, no more and no fewer (upstream: ``mpiSize == tp * pp``)."""
    where = f"the engine in {engine.folder}"
    if engine.world_size != world_size:
        return fail(
            f"{where} is built for {engine.world_size} rank(s), but the plan says {world_size}",
            "set engine.tensor_parallel and engine.pipeline_parallel to the engine's "
            f"({engine.tensor} and {engine.pipeline}), or {_AGAIN}",
        )
    return ok(f"{where} is built for {world_size} rank{'s' * (world_size != 1)}")


def engine_files(engine: EngineConfig) -> Diagnostic:
    """Each rank loads a file of its own: all of them are there, and none is empty."""
    for name in engine.files:
        file = engine.folder / name
        if not file.is_file():
            message = f"the engine in {engine.folder} is not whole: {name} is missing"
            return fail(message, _AGAIN)
        if file.stat().st_size == 0 and not engine.is_reference:
            return fail(f"the engine in {engine.folder} is not whole: {name} is empty", _AGAIN)
    return ok(f"all {len(engine.files)} files of the engine are there")


def engine_gpus_per_node(
    engine: EngineConfig, world_size: int, ranks_per_node: int, visible_gpus: int
) -> Diagnostic:
    """The runtime takes node and device of a rank from the ``gpus_per_node`` that stands in the engine.

    ``worldConfig.h``: device = rank % gpus_per_node, node = rank / gpus_per_node; ``worldConfig.cpp``
    refuses fewer visible GPUs than that ("Detect 4 GPUs, the GPU number is incompatible with 8
    gpusPerNode when MPI size is 8"), but for a single one.
    """
    if engine.is_reference or world_size == 1:
        return ok("one rank computes on the first GPU" if world_size == 1 else "ranks take their own GPUs")
    built, nodes = engine.runtime_gpus_per_node, -(-world_size // ranks_per_node)
    told = f"the engine in {engine.folder} is built for nodes of {built} GPUs"
    if engine.gpus_per_node is None:
        told += " (it names no number, and the runtime takes 8)"
    hint = f"build it again with gpus_per_node {ranks_per_node} in the profile"
    if nodes == 1 and world_size > built:
        return fail(f"{told}: rank {built} would share a GPU with rank 0", hint)
    if nodes > 1 and built != ranks_per_node:
        there = f"{ranks_per_node} of the ranks run on each node"
        message = f"{told}, but {there}: they would take the wrong GPUs"
        return fail(message, hint)
    if 1 < visible_gpus < min(built, world_size):
        message = f"{told}, but a rank sees {visible_gpus}"
        return fail(message, f"build it again with gpus_per_node {visible_gpus} in the profile")
    return ok(f"{told}, which fits {nodes} node{'s' * (nodes > 1)} of {ranks_per_node} ranks")


def engine_version(engine: EngineConfig, release: str | None) -> Diagnostic:
    """An engine runs on the release that built it only (tensorrtllm_backend, issues 190, 194, 235)."""
    if engine.is_reference:
        return ok("the reference backend's engine")
    if engine.version is None:
        return unknown(
            f"the engine in {engine.folder} does not say which TensorRT-LLM built it (0.7 and before did not)"
        )
    if release is None:
        return unknown(f"the engine is of TensorRT-LLM {engine.version}; what the container has is not known")
    state = _compared(engine.version, release)
    if state == "same":
        return ok(f"engine and container are of TensorRT-LLM {release}")
    message = (
        f"the engine in {engine.folder} is of TensorRT-LLM {engine.version}, but the container has {release}"
    )
    hint = f"{_AGAIN} with {release}, or serve with a container of {engine.version}"
    return warn(message, hint) if state == "near" else fail(message, hint)


def planned_version(planned: str, found: str | None) -> Diagnostic:
    """What the container has is what the command lines were written for."""
    if found is None:
        return unknown(f"no TensorRT-LLM package in this Python; the plan is for {planned}")
    state = _compared(planned, found)
    if state == "same":
        return ok(f"the container has TensorRT-LLM {found}, as planned")
    message = f"the container has TensorRT-LLM {found}, but the plan is for {planned}"
    hint = f"set container.tensorrt_llm_version in the profile to {found}, or take an image of {planned}"
    return warn(message, hint) if state == "near" else fail(message, hint)


def installed_version() -> str | None:
    """TensorRT-LLM of this Python, without importing it; ``None`` if there is none."""
    try:
        return importlib.metadata.version("tensorrt_llm")
    except importlib.metadata.PackageNotFoundError:
        return None


def _compared(one: str, other: str) -> str:
    """``same``, ``near`` (they differ in what follows the numbers: rc, post, dev) or ``other``."""
    plain = [re.sub(r"\+.*", "", text.strip().lower()) for text in (one, other)]
    if plain[0] == plain[1]:
        return "same"
    numbers = [re.match(r"[0-9]+(?:\.[0-9]+)*", text) for text in plain]
    first, second = (re.sub(r"(\.0)+$", "", match.group()) if match else None for match in numbers)
    if first is None or first != second:
        return "other"
    rest = [text[match.end() :] if match else "" for text, match in zip(plain, numbers, strict=True)]
    return "same" if rest[0] == rest[1] else "near"


def paged_context(engine: EngineConfig, wanted_by: str) -> Diagnostic:
    """KV cache reuse and chunked context need attention over a paged cache for prompts too."""
    if engine.paged_context_fmha and engine.paged_kv_cache is not False:
        return ok(f"the engine has paged context attention, as {wanted_by} needs")
    return fail(
        f"{wanted_by} needs an engine with paged context attention (use_paged_context_fmha), "
        f"which the one in {engine.folder} lacks",
        f"set engine.paged_context_fmha to true and {_AGAIN}, or set {wanted_by} to false",
    )
