"""Kinds of GPU by name, in the table and in a profile."""

from __future__ import annotations

import re
from importlib import resources

import pytest
from pydantic import ValidationError

from trtllm_hpc.config.cluster import ClusterProfile, gpus
from trtllm_hpc.config.dump import cluster_yaml
from trtllm_hpc.validation.load import cluster_problems


def test_every_gpu_has_memory_capability_and_a_source() -> None:
    assert len(gpus()) > 10
    for name, gpu in gpus().items():
        assert re.fullmatch(r"[a-z0-9-]+", name) and 14 < gpu["gpu_memory_gib"] < 300
        assert re.fullmatch(r"\d+\.\d", gpu["compute_capability"])
    assert gpus()["h200"] == {"gpu_memory_gib": 140.4, "compute_capability": "9.0"}
    table = (resources.files("trtllm_hpc.config") / "gpus.toml").read_text("utf-8")
    assert len(re.findall(r'source = "[a-z]', table)) == len(gpus())


def test_a_profile_that_names_its_gpu_knows_the_rest() -> None:
    profile = ClusterProfile(name="here", gpu="l40s")
    assert (profile.gpu_memory_gib, profile.compute_capability) == (44.99, "8.9")
    own = ClusterProfile(name="here", gpu="l40s", gpu_memory_gib=40.0)
    assert (own.gpu_memory_gib, own.compute_capability) == (40.0, "8.9")
    assert "gpu_memory_gib: 44.99" in cluster_yaml(profile)  # what was resolved is written down


def test_an_unknown_gpu_is_a_diagnostic_with_the_names() -> None:
    [problem] = cluster_problems(ClusterProfile(name="here", gpu="h300"))
    assert "'h300' is not in the table" in problem.message and "h100-80gb" in (problem.hint or "")
    assert cluster_problems(ClusterProfile(name="here")) == []
    with pytest.raises(ValidationError):
        ClusterProfile.model_validate({"name": "here", "gpu": 7})
