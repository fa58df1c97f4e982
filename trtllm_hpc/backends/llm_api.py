"""The LLM API on PyTorch: its arguments, and upstream's Triton model for it.

The keys are the arguments of ``tensorrt_llm.LLM``. ``model.yaml`` also has ``triton_config``, which
upstream's ``model.py`` passes to Triton (TensorRT-LLM, ``triton_backend/all_models/llmapi/tensorrt_llm/1``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trtllm_hpc.backends import tensorrt_llm_rules
from trtllm_hpc.backends.base import Backend, TritonBackend
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.config.layers import merged
from trtllm_hpc.config.rules import Rule
from trtllm_hpc.layout import Instances, one_node
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.model_repository.recipe import ModelEdits, ModelRecipe, RepositoryRecipe
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts

LAUNCHER = "trtllm-llmapi-launch"
"""Program that joins the ranks of the LLM API; in the container from 0.19 on (``tensorrt_llm/llmapi``)."""
_TEMPLATE = "llmapi/tensorrt_llm"


class PyTorchBackend(Backend):
    """A backend that loads a checkpoint with the LLM API on PyTorch, behind any server."""

    release_use = "nearest"
    rules: tuple[Rule, ...] = tensorrt_llm_rules.RULES
    keys: Mapping[str, tuple[str, ...]] = tensorrt_llm_rules.KEYS
    unused_hint = tensorrt_llm_rules.UNUSED_HINT

    def topology(self, job: JobFile, cluster: ClusterProfile) -> Instances:
        """Return the topology; without Slurm there is no launcher, so one task starts its own workers."""
        if cluster.scheduler == "local":
            return Instances(1, 1, one_node(1, job.engine.world_size if cluster.gpus_per_node else 0))
        return super().topology(job, cluster)

    def notes(self, facts: JobFacts) -> tuple[str, ...]:
        """Return a note about assumptions if the image is newer than every known release."""
        if facts.assumed_release is None or facts.release is None:
            return ()
        why = facts.assumed_release.message.rstrip(".")
        return (
            f"{why}: options and keys are assumed to be those of {facts.release.version}, the nearest known "
            "release",
        )

    def loaded_model(self, job: JobFile, paths: RunPaths) -> str | None:
        """Return the folder of the checkpoint."""
        return job.model.path


class TritonLlmApi(PyTorchBackend, TritonBackend):
    """The LLM API as upstream's Triton model."""

    keys: Mapping[str, tuple[str, ...]] = {**tensorrt_llm_rules.KEYS, "repository": ("decoupled",)}
    text_model = "tensorrt_llm"
    worker_models = ()
    # Upstream's model takes other requests than the usual ensemble.
    can_have_gateway = False
    # Without a launcher each server would spawn workers, which Slurm's PMIx refuses.
    launcher = LAUNCHER
    why_no_logits = "the LLM API's model returns no logits"
    why_no_adapters = "the LLM API's model takes no weights of LoRA adapters"

    def repository(self, facts: JobFacts, paths: RunPaths) -> RepositoryRecipe:
        """Return the recipe of the repository, which has one model of upstream's."""
        assert facts.release is not None
        # model.yaml has the value too, but a server without auto-completion reads only config.pbtxt.
        edits = ModelEdits(decoupled=facts.job.repository.decoupled)
        files = {"1/model.yaml": model_yaml(facts.job, paths)}
        model = ModelRecipe("tensorrt_llm", _TEMPLATE, {}, edits, files=files)
        return RepositoryRecipe(facts.release.version, (model,))


def model_yaml(job: JobFile, paths: RunPaths) -> str:
    """Return the text of ``model.yaml``."""
    # 0: upstream's model takes one request at a time, and batches internally.
    triton = {"max_batch_size": 0, "decoupled": job.repository.decoupled}
    return yaml_text({**pytorch_arguments(job, paths), "triton_config": triton}, job.engine.llm_api)


def pytorch_arguments(job: JobFile, paths: RunPaths) -> dict[str, Any]:
    """Return the LLM API's arguments for PyTorch from the job file's own keys."""
    engine, model = job.engine, job.model.path
    assert model is not None, "a rule refuses a job without a model"
    dtype = None if engine.dtype == "auto" else engine.dtype
    own = {"model": model, "tokenizer": job.model.tokenizer, "backend": "pytorch", "dtype": dtype}
    return given({**own, **arguments(job)})


def arguments(job: JobFile) -> dict[str, Any]:
    """Return the LLM API's arguments that are the same for checkpoints and engines."""
    engine, policy = job.engine, job.engine.capacity_scheduler_policy
    return {
        "tensor_parallel_size": engine.tensor_parallel,
        "pipeline_parallel_size": engine.pipeline_parallel,
        "context_parallel_size": engine.context_parallel if engine.context_parallel > 1 else None,
        "moe_tensor_parallel_size": engine.moe_tensor_parallel,
        "moe_expert_parallel_size": engine.moe_expert_parallel,
        **{key: getattr(engine, key) for key in tensorrt_llm_rules.SAME_KEYS},
        "scheduler_config": {"capacity_scheduler_policy": policy.upper()} if policy is not None else None,
        "kv_cache_config": given(
            {key: getattr(job.kv_cache, key) for key in tensorrt_llm_rules.KV_CACHE_KEYS}
        ),
    }


def yaml_text(values: Mapping[str, Any], further: Mapping[str, Any]) -> str:
    """Return both mappings merged, as YAML; values in ``further`` override those in ``values``.

    The text is ASCII, because upstream's model opens the file in the locale's encoding, which is ASCII in a
    Triton stub. The text is JSON except for non-ASCII characters: YAML does not join JSON's surrogate pairs.
    """
    text = json.dumps(merged(values, further), indent=2, ensure_ascii=False)
    escaped = (letter if letter.isascii() else f"\\U{ord(letter):08x}" for letter in text)
    return "".join(escaped) + "\n"


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are set."""
    return {key: value for key, value in values.items() if value is not None and value != {}}
