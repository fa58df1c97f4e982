"""List the shipped job files, and write a job file for a checkpoint, a kind of GPU and a goal.

Such a job file extends a shipped one, or is derived from the checkpoint's size. Its comments name the sources
of its values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import TextWrapper
from typing import Any, Literal

from trtllm_hpc.backends import backend_of
from trtllm_hpc.config.cluster import ClusterProfile, gpus
from trtllm_hpc.config.dump import compact_yaml, scalar
from trtllm_hpc.config.files import jobs, read_job
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.errors import ConfigError, Diagnostic
from trtllm_hpc.tensorrt_llm.job_facts import Checkpoint
from trtllm_hpc.tensorrt_llm.memory import Parallel, UnknownModel, gib, plan_memory
from trtllm_hpc.tensorrt_llm.releases.release import releases

Goal = Literal["latency", "throughput"]

_BATCH, _USEFUL, _LONGEST = {"latency": 8, "throughput": 256}, 64, 16384
"""Maximum batch size by goal; number of requests of 2,048 tokens for which a layout must have KV cache;
tokens of the longest request."""
_NEEDS = {"fp8": 8.9, "mxfp4": 9.0, "nvfp4": 10.0}
"""Lowest compute capability of GPUs that can compute with such weights."""
_WRAPPER = TextWrapper(95, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)
_LIMITS = """
# enough time for the largest models
serve: {cpus_per_rank: 4, time_limit_minutes: 240, ready_timeout_seconds: 5400}
companion: {time_limit_minutes: 180}
"""
_GPUS_PER_NODE = 8
"""GPUs per node for which layouts are worked out; only the number of nodes depends on it."""


@dataclass(frozen=True)
class ShippedJob:
    """One shipped job file."""

    name: str
    """Name of the file for ``submit`` and other commands that take a JOB."""
    file: str
    """Path of the file."""
    model: str
    """Name of the synthetic model, or of the model's folder."""
    backend: str
    """``engine.backend``."""
    release: str | None
    """Release of TensorRT-LLM that the file states."""
    ranks: int
    """Number of ranks of all instances together."""
    gpus: int
    """Number of GPUs; 0: the job needs none."""
    nodes: int
    """Number of nodes with eight GPUs each."""
    gpu_types: str | None
    """GPUs that the settings are for, e.g. ``H100 or H200``; ``None``: not stated in the file."""
    summary: str
    """First sentence, up to its colon, of the file's opening comment."""


def shipped_jobs() -> list[ShippedJob]:
    """Return the shipped job files, sorted by name; those without GPUs come first.

    Raises ConfigError if one of them is wrong.
    """
    return sorted((described(name, path) for name, path in jobs().items()), key=lambda job: job.gpus > 0)


def copy_of(name: str, own_name: str, model: str | None, key: str) -> str:
    """Return the text of a shipped job file with ``own_name`` and ``model.KEY`` set; raise ConfigError."""
    file = jobs()[name]
    # Edited by lines, which have the same form in every shipped file: ruamel's round trip would lose the
    # comment after model.path, and write lists and null in another way.
    text, named = file.read_text(encoding="utf-8"), f"name: {scalar(own_name)}"
    text = re.sub(r"(?m)^name: .*", lambda _: named, text)
    if model is None:
        return text
    if read_job(file).model.path is None:
        message = f"{name} makes its own model, so there is no folder to set"
        raise ConfigError([Diagnostic("conflict", message, str(file), hint="leave --model out")])
    line = f"  {key}: {scalar(model)}"
    text, lines = re.subn(r"(?m)^  path: .*", lambda _: line, text)
    return text if lines else f"{text}\nmodel:\n{line}\n"


def described(name: str, path: Path) -> ShippedJob:
    """Return the description of a job file. Raises ConfigError if the file is wrong."""
    job = read_job(path)
    cluster = ClusterProfile(name="any", partition="any", gpus_per_node=_GPUS_PER_NODE)
    backend = backend_of(job)
    [layout] = backend.topology(job, cluster).components
    text = path.read_text(encoding="utf-8")
    gpu_types = re.search(r"(?m)^# GPUs: (.+)$", text)
    top = re.match(r"(?:# *\S.*\n)*", text)
    comment = " ".join(line.removeprefix("#").strip() for line in (top[0] if top else "").splitlines())
    sentence = re.match(r".+?(?=[.:](?:\s|$))", comment)
    return ShippedJob(
        name=name,
        file=str(path),
        model=job.model.synthetic or Path(job.model.path or "").name,
        backend=job.engine.backend,
        release=job.engine.tensorrt_llm_version,
        ranks=layout.world_size,
        gpus=layout.nodes * layout.gpus_per_node if backend.needs_gpus else 0,
        nodes=layout.nodes,
        gpu_types=gpu_types[1] if gpu_types else None,
        summary=sentence[0] if sentence else comment,
    )


# A job file for a checkpoint ----------------------------------------------------------


def fitting_job(folder: Path, name: str, path: str, gpu: str, goal: Goal) -> tuple[str, list[str]]:
    """Return the text of a job file for a checkpoint, and sentences about the sources of its values.

    ``folder`` is the checkpoint on this machine, ``path`` its path in the job file, ``gpu`` a kind in
    ``gpus.toml``. Raises ConfigError if the checkpoint cannot be read, or such GPUs cannot compute with it or
    hold it.
    """
    checkpoint = Checkpoint(folder)
    has, needs = gpus()[gpu]["compute_capability"], _NEEDS.get(checkpoint.quantization, 0)
    weights = "not quantized" if checkpoint.quantization == "none" else checkpoint.quantization.upper()
    if float(has) < needs:
        raise _error(checkpoint, f"{weights} needs compute capability {needs}, and {gpu} has {has}")
    size = gib(checkpoint.stored) if checkpoint.stored else "unknown size"
    notes = [f"{checkpoint.name} on {gpu} for {goal}: {checkpoint.architecture}, {weights}, {size}."]
    layout = _layout(checkpoint, gpu)
    shipped = _shipped_for(checkpoint, gpu, goal, 1 if layout is None else layout.tensor * layout.pipeline)
    if shipped is not None:
        notes.append(f"Settings: shipped job file {shipped.name}; its comments name NVIDIA's files.")
        head, engine = {"name": name, "extends": shipped.name}, ""
    elif layout is not None:
        notes.append(
            "No shipped job file fits: the memory planner chose the number of GPUs; the rest are defaults."
        )
        derived = compact_yaml({"engine": _derived(checkpoint, layout, goal)})
        head, engine = {"name": name}, f"\n{derived}{_LIMITS}"
    else:
        raise _error(
            checkpoint, "no shipped job file fits it, and its size is unknown: the weights have no index"
        )
    text = "".join(f"{_WRAPPER.fill(note)}\n" for note in notes) + compact_yaml(head)
    return f"{text}\n{compact_yaml({'model': {'path': path}})}{engine}", notes


def _error(checkpoint: Checkpoint, message: str) -> ConfigError:
    hint = "name another --gpu, or another checkpoint of the model"
    return ConfigError([Diagnostic("does-not-fit", f"{checkpoint.name}: {message}", hint=hint)])


def _layout(checkpoint: Checkpoint, gpu: str) -> Parallel | None:
    """Return the smallest layout with memory for weights and a useful KV cache; ``None``: unknown size."""
    if checkpoint.stored is None and checkpoint.quantization != "none":
        return None
    engine = {"backend": "pytorch", "max_batch_size": _USEFUL, "max_seq_len": 2048}
    engine |= {"quantization": {"kv_cache": "fp8" if checkpoint.has_fp8_cache else None}}
    job, sentence = JobFile.model_validate({"name": "plan", "engine": engine}), ""
    for width in (8, 16, 32):  # more than 8: tensor parallelism over several nodes if nothing smaller fits
        cluster = ClusterProfile(name="plan", partition="any", gpus_per_node=width, gpu=gpu)
        try:
            plan = plan_memory(job, cluster, checkpoint.config, stored=checkpoint.stored)
        except UnknownModel:
            return None
        sentence, parallel = plan.sentence, plan.parallel if plan.verdict == "ok" else plan.suggestion
        if parallel is not None:
            return parallel
    raise _error(checkpoint, f"it does not fit any number of {gpu}; on one, {sentence}")


def _shipped_for(checkpoint: Checkpoint, gpu: str, goal: Goal, fewest: int) -> ShippedJob | None:
    """Return the shipped job file for this model, GPU and goal with the fewest GPUs."""
    candidates = []
    for job in shipped_jobs():
        text = jobs()[job.name].read_text(encoding="utf-8")
        model = re.search(r"huggingface\.co/[\w.-]+/([\w.-]*\w)", text)
        kinds = re.findall(r"[a-z]+\d+", (job.gpu_types or "").lower())
        is_for = "latency" if "# Goal: latency\n" in text else "throughput"
        is_same = model is not None and model[1].casefold() == checkpoint.name.casefold()
        is_plain = job.backend == "pytorch" and "speculative_model_dir" not in text
        if is_same and is_plain and is_for == goal and gpu.partition("-")[0] in kinds and job.gpus >= fewest:
            candidates.append(job)
    return min(candidates, key=lambda job: job.gpus, default=None)


def _derived(checkpoint: Checkpoint, layout: Parallel, goal: Goal) -> dict[str, Any]:
    """Return the section ``engine`` for a checkpoint whose sizes alone are known."""
    batch = {"max_batch_size": _BATCH[goal]}
    longest = min(int(checkpoint.config.get("max_position_embeddings") or _LONGEST), _LONGEST)
    engine: dict[str, Any] = {
        "backend": "pytorch",
        "tensorrt_llm_version": [release for release in releases() if release.tags][-1].version,
        "tensor_parallel": layout.tensor,
        **({"pipeline_parallel": layout.pipeline} if layout.pipeline > 1 else {}),
        **batch,
        "max_num_tokens": 8192,
        "max_seq_len": longest,
        "llm_api": {
            "enable_chunked_prefill": True,
            "cuda_graph_config": {"enable_padding": True, **batch},
            "kv_cache_config": {"free_gpu_memory_fraction": 0.9},
        },
    }
    experts = checkpoint.experts
    if experts and goal == "throughput" and experts % layout.tensor == 0:
        engine["moe_expert_parallel"] = layout.tensor
    return engine
