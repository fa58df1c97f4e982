"""The keys that a backend lists have an effect on it; a rule refuses each other key."""

from __future__ import annotations

from typing import Any

import pytest

from trtllm_hpc.backends import BACKENDS, facts_of
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.validation.load import problems

PROFILE = ClusterProfile(name="here", gpus_per_node=8)
VALUES: dict[str, Any] = {
    "engine.directory": "/engines/llama",
    "engine.llm_api": {"print_iter_log": True},
    "engine.opt_num_tokens": 8,
    "kv_cache.max_tokens": 1024,
    "repository.bls_instances": 4,
    "repository.decoupled": True,
    "repository.instances": 2,
    "repository.models": [{"name": "tensorrt_llm", "gpu_device_ids": [0]}],
    "repository.parameters": {"tensorrt_llm": {"lora_cache_max_adapter_size": 64}},
}


@pytest.mark.parametrize("way", BACKENDS, ids=" ".join)
@pytest.mark.parametrize("key", VALUES)
def test_a_key_is_listed_or_refused(way: tuple[str, str, str], key: str) -> None:
    engine, frontend, mode = way
    release = {} if engine in ("reference", "command") else {"tensorrt_llm_version": "1.0.0"}
    sections: dict[str, Any] = {
        "model": {"path": "/models/llama", "family": "llama"},
        "engine": {"backend": engine, **release},
        "serve": {"frontend": frontend, "mode": mode},
    }
    section, name = key.split(".")
    sections.setdefault(section, {})[name] = VALUES[key]
    found = problems(facts_of(JobFile.model_validate({"name": "demo", **sections}), PROFILE))
    refused = any(it.code == "conflict" and it.field.startswith(key) for it in found)
    if section in BACKENDS[way].keys:
        assert refused == (name not in BACKENDS[way].keys[section]), found
