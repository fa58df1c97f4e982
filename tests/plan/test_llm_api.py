"""The command lines of ``trtllm-serve`` in every release that has it; some are whole in ``outcomes.py``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.render.cases import plan_of
from tests.tensorrt_llm.releases.serve_words import refused_words
from trtllm_hpc.runtime.server_spec import expand
from trtllm_hpc.tensorrt_llm.releases.release import Release, releases

CLUSTER = {"name": "here", "gpus_per_node": 8}
WITH_SERVER = [release for release in releases() if "pytorch" in release.backends]
PHASES = {"context": {"tensor_parallel": 2}, "generation": {"moe_expert_parallel": 4}}


def job(release: Release, backend: str, **serve: Any) -> dict[str, Any]:
    size = {"tensor_parallel": 4, "max_batch_size": 64, "max_seq_len": 4096}
    engine = {"backend": backend, "tensorrt_llm_version": release.version, **size}
    return {
        "name": "demo",
        "model": {"path": "/models/llama", "family": "llama"},
        "engine": engine,
        "serve": {"frontend": "openai", **serve},
    }


@pytest.mark.parametrize("release", WITH_SERVER, ids=lambda release: release.version)
@pytest.mark.parametrize("backend", ["pytorch", "tensorrtllm"])
def test_every_release_takes_its_command_line(release: Release, backend: str) -> None:
    command = plan_of(job(release, backend), CLUSTER, "/runs/demo").server.spec.leader
    words = expand(command, {"address": "127.0.0.1", "port": 8000})
    assert not refused_words(release, words)


WITH_PHASES = [release for release in WITH_SERVER if release.at_least("1.0.0")]


@pytest.mark.parametrize("release", WITH_PHASES, ids=lambda release: release.version)
def test_every_release_takes_the_fronts_command_line(release: Release) -> None:
    split = job(release, "pytorch", mode="disaggregated", disaggregated=PHASES)
    front = plan_of(split, CLUSTER, "/runs/demo").front
    assert front is not None
    assert not refused_words(release, [*front.command, "--config_file=front.yaml"])


def test_a_phase_adds_to_each_section_of_the_engines_configuration_and_drops_nothing() -> None:
    split = job(WITH_PHASES[-1], "pytorch", mode="disaggregated")
    split["engine"]["llm_api"] = {"kv_cache_config": {"dtype": "fp8", "enable_block_reuse": False}}
    wanted = {"context": {"max_tokens": 9000}, "generation": {"max_tokens": 8000, "dtype": "auto"}}
    phases = {name: {"llm_api": {"kv_cache_config": cache}} for name, cache in wanted.items()}
    split["serve"]["disaggregated"] = phases
    servers = plan_of(split, CLUSTER, "/runs/demo").servers
    context, generation = (json.loads(it.configuration or "")["kv_cache_config"] for it in servers)
    assert context == {"enable_block_reuse": False, "dtype": "fp8", "max_tokens": 9000}
    assert generation == {"enable_block_reuse": False, "dtype": "auto", "max_tokens": 8000}


def test_the_preflight_has_no_version_to_compare_with_an_unknown_image() -> None:
    image = "nvcr.io#nvidia/tensorrt-llm/release:9.0.0"
    cluster = {**CLUSTER, "container": {"runtime": "pyxis", "image": image}}
    engine = {"backend": "pytorch"}
    plan = plan_of({"name": "demo", "model": {"path": "/m"}, "engine": engine}, cluster, "/runs/demo")
    assert plan.notes and plan.release is None
