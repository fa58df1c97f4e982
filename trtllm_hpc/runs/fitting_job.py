"""A job file for a checkpoint, a kind of GPU and a goal: from the nearest recipe, or derived from its size.

Recipes are the shipped job files and upstream's table. Comments in the file say which values are upstream's,
which are ours, and why the other recipes of this model were not taken.
"""

from __future__ import annotations

import re
from copy import deepcopy
from functools import cache, reduce
from pathlib import Path
from textwrap import TextWrapper
from typing import Any

from trtllm_hpc.config.cluster import ClusterProfile, gpus
from trtllm_hpc.config.dump import compact_yaml
from trtllm_hpc.config.files import jobs
from trtllm_hpc.config.inheritance import read_job
from trtllm_hpc.config.job import LLM_API_KEYS, JobFile
from trtllm_hpc.errors import ConfigError, Diagnostic
from trtllm_hpc.runs.shipped_jobs import shipped_jobs
from trtllm_hpc.tensorrt_llm.checkpoint import Checkpoint
from trtllm_hpc.tensorrt_llm.llm_api import unknown_keys, wrong_values
from trtllm_hpc.tensorrt_llm.memory.planner import gib, plan_memory
from trtllm_hpc.tensorrt_llm.memory.rank_memory import Parallel
from trtllm_hpc.tensorrt_llm.memory.shapes import UnknownModel
from trtllm_hpc.tensorrt_llm.recipes import Goal, Recipe, recipes
from trtllm_hpc.tensorrt_llm.releases.release import Release, releases

_BATCH, _USEFUL, _LONGEST = {"latency": 8, "throughput": 256}, 64, 16384
"""Most requests at once; requests of 2,048 tokens that a layout must hold; tokens of the longest request."""
_NEEDS = {"fp8": 8.9, "mxfp4": 9.0, "nvfp4": 10.0}
"""Compute capability from which GPUs compute with such weights."""
_WHOLE = {"kv_lora_rank", "linear_num_key_heads"}  # of MLA and linear attention: prompts are not cut
_WRAPPER = TextWrapper(95, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)
_LIMITS = """
# ours: enough time for the largest models
serve: {cpus_per_rank: 4, time_limit_minutes: 240, ready_timeout_seconds: 5400}
companion: {time_limit_minutes: 180, endpoint_timeout_seconds: 7200}
"""


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
        about = f" for {recipe.models[0]}, of the same architecture" if recipe and is_other else ""
        if recipe is None:
            self.notes.append("No recipe fits: the number of GPUs is the memory planner's, the rest ours.")
            self._derive()
        elif recipe.commit is None:
            self.base = recipe.source
            self.notes.append(
                f"Settings: shipped job file {self.base}{about}; its comments name NVIDIA's files."
            )
        else:
            about += f"; measured with {recipe.load}" if recipe.load else ""
            about += f"; for images after TensorRT-LLM {recipe.after} (serve.image)" if recipe.after else ""
            self.notes.append(f"Settings: NVIDIA/TensorRT-LLM@{recipe.commit[:8]}, {recipe.source}{about}.")
            self._take(recipe)
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
        every = ((it, it.distance(self.checkpoint)) for it in (*_shipped(), *recipes()))
        related = {it: away for it, away in every if away is not None}
        wrong = {it: self._misfit(it) for it in related}

        def rank(it: Recipe) -> tuple[Any, ...]:
            # Of several for this model: the fewest GPUs that do, a checked file, the longest prompts.
            more = max(it.count, fewest) if related[it] == 0 else fewest
            return related[it], more, it.commit is not None, -(it.input_tokens or 10**9)

        best = min((it for it in related if not wrong[it]), key=rank, default=None)
        refused: dict[str, list[str]] = {}
        for it, away in related.items():
            if it is not best and (best is None or away == 0):
                is_larger = best is None or it.count != best.count
                why = wrong[it] or (f"{it.count} GPUs" if is_larger else it.load or "more loads")
                refused.setdefault(why, []).append(it.source.rpartition("configs/")[2])
        return best, refused

    def _misfit(self, it: Recipe) -> str | None:
        if it.gpus and self.gpu.partition("-")[0] not in it.gpus:
            return ", ".join(it.gpus).upper()
        return it.goal if it.goal != self.goal else None

    def _derive(self) -> None:
        if self.layout is None:
            raise self._error("no recipe is for it, and no index of its weights has their size")
        batch = {"max_batch_size": _BATCH[self.goal]}
        self.engine = {**batch, "max_num_tokens": 8192, "max_seq_len": self.longest}
        llm_api = {"enable_chunked_prefill": True, "cuda_graph_config": {"enable_padding": True, **batch}}
        self.engine["llm_api"] = {**llm_api, "kv_cache_config": {"free_gpu_memory_fraction": 0.9}}

    def _take(self, recipe: Recipe) -> None:
        """Take settings as far as the release has them, for requests longer than upstream has measured."""
        self.engine, wrong = settings(recipe, self.release)
        for path, message in wrong.items():
            self.notes.append(f"Left out: {path}, which {message} (TensorRT-LLM {self.release.version}).")
        llm_api = self.engine["llm_api"]
        graphs = llm_api.get("cuda_graph_config", {}).get("max_batch_size", 64)
        self._put("max_batch_size", self.engine.get("max_batch_size", graphs), "that of the CUDA graphs")
        if recipe.load and self.engine.get("max_seq_len", _LONGEST) < self.longest:
            self._put("max_seq_len", self.longest, "for longer requests than upstream's benchmark")
        steps, longest = (self.engine.get(it, self.longest) for it in ("max_num_tokens", "max_seq_len"))
        if steps < longest and not llm_api.get("enable_chunked_prefill"):
            if recipe.after or "enable_chunked_prefill" in llm_api or _WHOLE & {*self.checkpoint.config}:
                return self.notes.append(f"A prompt has at most {steps} tokens (engine.max_num_tokens).")
            llm_api["enable_chunked_prefill"] = True
            self.notes.append("Ours: engine.llm_api.enable_chunked_prefill, for long prompts.")
            self._put("max_num_tokens", steps // 64 * 64, "whole blocks of the KV cache, for chunked prefill")

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


def settings(recipe: Recipe, release: Release) -> tuple[dict[str, Any], dict[str, str]]:
    """Return ``engine`` with a recipe's settings, and what the release refuses of them with the reasons."""
    llm_api = deepcopy(dict(recipe.llm_api))
    engine = {own: llm_api.pop(key) for key, own in LLM_API_KEYS.items() if key in llm_api}
    wrong = {it.path: it.message for it in unknown_keys(release, llm_api)}
    wrong |= {path: message for path, message, _ in wrong_values(release, llm_api)}
    for path in wrong:
        *sections, key = path.split(".")
        reduce(dict.__getitem__, sections, llm_api).pop(key, None)
    return {**engine, "llm_api": {key: it for key, it in llm_api.items() if it != {}}}, wrong


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
            found.append(Recipe(job.name, (model[1],), kinds, job.gpus, goal))
    return tuple(found)
