"""A job file for a checkpoint, a kind of GPU and a goal: from a shipped one, or derived from its size.

Comments in the file say which values are ours, and why the other job files for this model were not taken.
``models.toml`` has the sizes of the models that the shipped job files are for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import TextWrapper
from typing import Any, Literal

from trtllm_hpc.config.cluster import ClusterProfile, gpus
from trtllm_hpc.config.dump import compact_yaml
from trtllm_hpc.config.files import jobs
from trtllm_hpc.config.inheritance import read_job
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.errors import ConfigError, Diagnostic
from trtllm_hpc.runs.shipped_jobs import shipped_jobs
from trtllm_hpc.tensorrt_llm.checkpoint import Checkpoint
from trtllm_hpc.tensorrt_llm.memory.planner import gib, plan_memory
from trtllm_hpc.tensorrt_llm.memory.shapes import Parallel, UnknownModel
from trtllm_hpc.tensorrt_llm.releases.data_files import read_data
from trtllm_hpc.tensorrt_llm.releases.release import releases

_BATCH, _USEFUL, _LONGEST = {"latency": 8, "throughput": 256}, 64, 16384
"""Most requests at once; requests of 2,048 tokens that a layout must hold; tokens of the longest request."""
_NEEDS = {"fp8": 8.9, "mxfp4": 9.0, "nvfp4": 10.0}
"""Compute capability from which GPUs compute with such weights."""
_WRAPPER = TextWrapper(95, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)
_LIMITS = """
# ours: enough time for the largest models
serve: {cpus_per_rank: 4, time_limit_minutes: 240, ready_timeout_seconds: 5400}
companion: {time_limit_minutes: 180}
"""
Goal = Literal["latency", "throughput"]


@dataclass(frozen=True)
class Recipe:
    """What a shipped job file is for."""

    job: str
    """Its name."""
    model: str
    """Name at Hugging Face."""
    gpus: tuple[str, ...]
    """Kinds of GPU, such as ``h200``."""
    count: int
    """GPUs of all instances together."""
    goal: Goal

    def distance(self, checkpoint: Checkpoint) -> int | None:
        """Return 0 for the same model, 1 for another precision of a dense one, more for another size.

        ``None``: another architecture, or experts in another precision, which need other kernels.
        """
        if checkpoint.name.casefold() == self.model.rpartition("/")[2].casefold():
            return 0
        model, config = read_data("models")["model"].get(self.model, {}), checkpoint.config
        if model.get("architecture") != checkpoint.architecture:
            return None
        size = config.get("hidden_size", 0) * config.get("num_hidden_layers", 0)
        is_alike, experts = model["quantization"] == checkpoint.quantization, checkpoint.experts
        if not is_alike and (experts or model["experts"]):
            return None
        apart = abs(model["hidden"] * model["layers"] - size) + abs(model["experts"] - experts)
        return int(apart + (not is_alike))


def fitting_job(folder: Path, name: str, path: str, gpu: str, goal: Goal) -> tuple[str, list[str]]:
    """Return the text of a job file, and what it is made of, in sentences.

    ``folder`` is the checkpoint's here, ``path`` the job file's name for it; ``gpu`` a kind of ``gpus.toml``.
    Raises ConfigError if the checkpoint cannot be read, or such GPUs cannot compute or hold it.
    """
    draft = _Draft(Checkpoint(folder), gpu, goal)
    head = {"name": name} | ({"extends": draft.base} if draft.base else {})
    engine = {} if draft.base else {"backend": "pytorch", "tensorrt_llm_version": draft.release.version}
    engine |= {key: it for key, it in draft.engine.items() if it != {}}
    text = "".join(f"{_WRAPPER.fill(note)}\n" for note in draft.notes) + compact_yaml(head)
    text += f"\n{compact_yaml({'model': {'path': path}})}" + ("\nengine:\n" if engine else "")
    for key, value in engine.items():
        own = compact_yaml({key: value}, "  ")
        text += own.replace("\n", " # ours\n", 1) if key in draft.ours else own
    return text + ("" if draft.base else _LIMITS), draft.notes


class _Draft:
    """A job file in the making."""

    def __init__(self, checkpoint: Checkpoint, gpu: str, goal: Goal) -> None:
        self.checkpoint, self.gpu, self.goal = checkpoint, gpu, goal
        has, needs = gpus()[gpu]["compute_capability"], _NEEDS.get(checkpoint.quantization, 0)
        weights = "not quantized" if checkpoint.quantization == "none" else checkpoint.quantization.upper()
        if float(has) < needs:
            raise self._error(f"{weights} needs compute capability {needs}, and {gpu} has {has}")
        size = gib(checkpoint.stored) if checkpoint.stored else "unknown size"
        self.notes = [f"{checkpoint.name} on {gpu} for {goal}: {checkpoint.architecture}, {weights}, {size}."]
        self.engine, self.ours = dict[str, Any](), set[str]()
        self.base: str | None = None  # shipped job file that is extended
        self.longest = min(int(checkpoint.config.get("max_position_embeddings") or _LONGEST), _LONGEST)
        self.release = [it for it in releases() if it.tags][-1]
        self.layout = self._layout()
        recipe, refused = self._choose()
        is_other = recipe is None or recipe.distance(checkpoint) != 0
        if recipe is None:
            self.notes.append(
                "No shipped job file fits: the number of GPUs is the memory planner's, the rest ours."
            )
            self._derive()
        else:
            self.base = recipe.job
            about = f" for {recipe.model}, of the same architecture" if is_other else ""
            self.notes.append(
                f"Settings: shipped job file {self.base}{about}; its comments name NVIDIA's files."
            )
        self._fit(is_other, recipe.count if recipe else 0)
        for why, it in refused.items():
            self.notes.append(f"Not taken, for {why}: {', '.join(it[:3] + ['more'] * (len(it) > 3))}.")

    def _error(self, message: str) -> ConfigError:
        hint = "name another --gpu, or another checkpoint of the model"
        return ConfigError([Diagnostic("does-not-fit", f"{self.checkpoint.name}: {message}", hint=hint)])

    def _put(self, key: str, value: Any, why: str) -> None:
        if self.engine.get(key, "") != value:
            self.engine[key] = value
            self.ours.add(key)
            self.notes.append(f"Ours: engine.{key}, {why}.")

    def _layout(self) -> Parallel | None:
        """Return the fewest ranks with room for weights and a useful KV cache; ``None``: unknown size."""
        checkpoint = self.checkpoint
        if checkpoint.stored is None and checkpoint.quantization != "none":
            return None
        engine = {"backend": "pytorch", "max_batch_size": _USEFUL, "max_seq_len": 2048}
        engine |= {"quantization": {"kv_cache": "fp8" if checkpoint.has_fp8_cache else None}}
        job, sentence = JobFile.model_validate({"name": "plan", "engine": engine}), ""
        for width in (8, 16, 32):  # tensor parallelism over several nodes where nothing smaller fits
            cluster = ClusterProfile(name="plan", partition="any", gpus_per_node=width, gpu=self.gpu)
            try:
                plan = plan_memory(job, cluster, checkpoint.config, stored=checkpoint.stored)
            except UnknownModel:
                return None
            sentence, found = plan.sentence, plan.room.parallel if plan.verdict == "ok" else plan.suggestion
            if found is not None:
                return found
        raise self._error(f"no number of {self.gpu} holds it; on one, {sentence}")

    def _choose(self) -> tuple[Recipe | None, dict[str, list[str]]]:
        """Return the nearest recipe; and the others of this model or architecture, by what they are for."""
        fewest = self.layout.tensor * self.layout.pipeline if self.layout is not None else 1
        every = ((it, it.distance(self.checkpoint)) for it in _shipped())
        related = {it: away for it, away in every if away is not None}
        wrong = {it: self._misfit(it) for it in related}

        def rank(it: Recipe) -> tuple[Any, ...]:
            # Of several for this model: the fewest GPUs that do.
            return related[it], max(it.count, fewest) if related[it] == 0 else fewest

        best = min((it for it in related if not wrong[it]), key=rank, default=None)
        refused: dict[str, list[str]] = {}
        for it, away in related.items():
            if it is not best and (best is None or away == 0):
                is_larger = best is None or it.count != best.count
                why = wrong[it] or (f"{it.count} GPUs" if is_larger else "the same GPUs")
                refused.setdefault(why, []).append(it.job)
        return best, refused

    def _misfit(self, it: Recipe) -> str | None:
        if self.gpu.partition("-")[0] not in it.gpus:
            return ", ".join(it.gpus).upper()
        return it.goal if it.goal != self.goal else None

    def _derive(self) -> None:
        if self.layout is None:
            raise self._error("no shipped job file is for it, and no index of its weights has their size")
        batch = {"max_batch_size": _BATCH[self.goal]}
        self.engine = {**batch, "max_num_tokens": 8192, "max_seq_len": self.longest}
        llm_api = {"enable_chunked_prefill": True, "cuda_graph_config": {"enable_padding": True, **batch}}
        self.engine["llm_api"] = {**llm_api, "kv_cache_config": {"free_gpu_memory_fraction": 0.9}}

    def _fit(self, is_other: bool, count: int) -> None:
        """Set the parallelism, unless the recipe's is enough; and what the recipe's model has otherwise."""
        layout, experts = self.layout, self.checkpoint.experts
        if layout and (is_other or count < layout.tensor * layout.pipeline):
            self._put("tensor_parallel", layout.tensor, "as few GPUs as weights and KV cache need")
            if layout.pipeline > 1:
                self._put("pipeline_parallel", layout.pipeline, "by the memory planner")
            if experts:
                expert = layout.tensor if self.goal == "throughput" and experts % layout.tensor == 0 else None
                self._put("moe_expert_parallel", expert, "ranks that share the experts")
                self.engine |= {"moe_tensor_parallel": None} if self.base else {}
        llm_api = self.engine.setdefault("llm_api", {})
        taken = read_job(jobs()[self.base]).engine.llm_api if self.base else llm_api
        cache, config = taken.get("kv_cache_config", {}), self.checkpoint.config
        if is_other and "speculative_config" in taken and not config.get("num_nextn_predict_layers"):
            llm_api.pop("speculative_config", None)
            llm_api |= {"speculative_config": None} if self.base else {}
            self.notes.append("Left out: speculative_config, since the checkpoint has no MTP layer.")
        if is_other and self.checkpoint.quantization == "none" and "dtype" in cache:
            llm_api.setdefault("kv_cache_config", {})["dtype"] = "auto"
            self.notes.append("Ours: the KV cache's dtype, since the checkpoint is not quantized.")


@cache
def _shipped() -> tuple[Recipe, ...]:
    """Return the shipped job files that name their GPUs and their only checkpoint, without a draft model."""
    found = []
    for job in shipped_jobs():
        text = jobs()[job.name].read_text(encoding="utf-8")
        model = re.search(r"huggingface\.co/([\w.-]+/[\w.-]*\w)", text)
        if job.backend == "pytorch" and model and job.gpu_types and "speculative_model_dir" not in text:
            kinds = tuple(re.findall(r"[a-z]+\d+", job.gpu_types.lower()))
            goal: Goal = "latency" if "# Goal: latency\n" in text else "throughput"
            found.append(Recipe(job.name, model[1], kinds, job.gpus, goal))
    return tuple(found)
