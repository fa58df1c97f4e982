"""Job files and recipes for the tests of model repositories."""

from __future__ import annotations

from typing import Any

from trtllm_hpc.backends import backend_of, facts_of
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.model_repository.recipe import RepositoryRecipe


def make_job(version: str, **sections: dict[str, Any]) -> JobFile:
    """A job file for TensorRT-LLM; ``sections`` are laid over it."""
    plain: dict[str, Any] = {
        "name": "served",
        "model": {"path": "/models/a, b: c"},
        "engine": {"backend": "tensorrtllm", "tensorrt_llm_version": version, "max_batch_size": 64},
    }
    for name, values in sections.items():
        plain[name] = {**plain.get(name, {}), **values}
    return JobFile.model_validate(plain)


def make_recipe(version: str, **sections: dict[str, Any]) -> RepositoryRecipe:
    """The recipe of such a job."""
    job = make_job(version, **sections)
    made = backend_of(job).repository(facts_of(job, ClusterProfile(name="here")), RunPaths("/runs/one"))
    assert isinstance(made, RepositoryRecipe)
    return made
