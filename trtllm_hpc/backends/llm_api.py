"""The LLM API on PyTorch: its arguments, and its own model behind Triton.

Its keys are the arguments of ``tensorrt_llm.LLM``. In ``model.yaml`` there is also ``triton_config``, what
upstream's ``model.py`` tells Triton (TensorRT-LLM, ``triton_backend/all_models/llmapi/tensorrt_llm/1``).
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
"""Joins the ranks of the LLM API; in the container from 0.19 on (``tensorrt_llm/llmapi``)."""
_TEMPLATE = "llmapi/tensorrt_llm"


class PyTorchBackend(Backend):
    """What loads a checkpoint with the LLM API on PyTorch, whatever answers."""

    release_use = "nearest"
    rules: tuple[Rule, ...] = tensorrt_llm_rules.RULES
    keys: Mapping[str, tuple[str, ...]] = tensorrt_llm_rules.KEYS
    unused_hint = tensorrt_llm_rules.UNUSED_HINT

    def topology(self, job: JobFile, cluster: ClusterProfile) -> Instances:
        """Return one task without Slurm, where there is no launcher: the LLM API starts its own workers."""
        if cluster.scheduler == "local":
            return Instances(1, 1, one_node(1, job.engine.world_size if cluster.gpus_per_node else 0))
        return super().topology(job, cluster)

    def notes(self, facts: JobFacts) -> tuple[str, ...]:
        """Return what is assumed of an image that is newer than every known release."""
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
    """The LLM API as upstream's model of Triton."""

    keys: Mapping[str, tuple[str, ...]] = {**tensorrt_llm_rules.KEYS, "repository": ("decoupled",)}
    text_model = "tensorrt_llm"
    worker_models = ()
    # Upstream's model takes other requests than ensemble.
    can_have_gateway = False
    # Without it each server would spawn workers, which Slurm's PMIx refuses.
    launcher = LAUNCHER
    why_no_logits = "the LLM API's model returns no logits"
    why_no_adapters = "the LLM API's model takes no weights of LoRA adapters"

    def repository(self, facts: JobFacts, paths: RunPaths) -> RepositoryRecipe:
        """Return how to make the repository of upstream's one model."""
        assert facts.release is not None
        # In model.yaml too; here for a server that is started without auto-completion.
        edits = ModelEdits(decoupled=facts.job.repository.decoupled)
        files = {"1/model.yaml": model_yaml(facts.job, paths)}
        model = ModelRecipe("tensorrt_llm", _TEMPLATE, {}, edits, files=files)
        return RepositoryRecipe(facts.release.version, (model,))


def model_yaml(job: JobFile, paths: RunPaths) -> str:
    """Return the text of ``model.yaml``."""
    # Upstream's model takes one request at a time, and batches inside.
    triton = {"max_batch_size": 0, "decoupled": job.repository.decoupled}
    return yaml_text({**pytorch_arguments(job, paths), "triton_config": triton}, job.engine.llm_api)


def pytorch_arguments(job: JobFile, paths: RunPaths) -> dict[str, Any]:
    """Return the arguments of the LLM API on PyTorch that the job file's own keys mean."""
    engine, model = job.engine, job.model.path
    assert model is not None, "a rule refuses a job without a model"
    dtype = None if engine.dtype == "auto" else engine.dtype
    own = {"model": model, "tokenizer": job.model.tokenizer, "backend": "pytorch", "dtype": dtype}
    return given({**own, **arguments(job)})


def arguments(job: JobFile) -> dict[str, Any]:
    """Return the arguments of the LLM API that do not depend on what is loaded."""
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
    """Return both as YAML; where both have a value it is the second one's.

    The text is ASCII: upstream's model opens the file in the locale's encoding, which in a Triton stub is
    ASCII. It is JSON but for the escapes of other characters: YAML does not join JSON's surrogate pairs.
    """
    text = json.dumps(merged(values, further), indent=2, ensure_ascii=False)
    return "".join(it if it.isascii() else f"\\U{ord(it):08x}" for it in text) + "\n"


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are set."""
    return {key: value for key, value in values.items() if value is not None and value != {}}
