"""The command lines of ``trtllm-serve`` in every release that has the launcher."""

from __future__ import annotations

from typing import Any

import pytest

from tests.render.cases import plan_of
from trtllm_hpc.tensorrt_llm.releases import Release, releases
from trtllm_hpc.tensorrt_llm.releases.check import check_words

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
    command = plan_of(job(release, backend), CLUSTER, "/runs/demo").server.command
    assert check_words(release, command).remarks == ()


@pytest.mark.parametrize("release", WITH_SERVER, ids=lambda release: release.version)
def test_every_release_takes_the_fronts_command_line(release: Release) -> None:
    split = job(release, "pytorch", mode="disaggregated", disaggregated=PHASES)
    front = plan_of(split, CLUSTER, "/runs/demo").server.front
    assert check_words(release, [*front, "--config_file=front.yaml"]).remarks == ()


@pytest.mark.parametrize(
    ("version", "words"),
    [("0.20.0", []), ("1.1.0", ["--backend=trt"]), ("1.2.1", ["--backend=tensorrt"])],
)
def test_an_engine_is_served_by_the_backend_for_engines(version: str, words: list[str]) -> None:
    [release] = [release for release in WITH_SERVER if release.version == version]
    command = plan_of(job(release, "tensorrtllm"), CLUSTER, "/runs/demo").server.command
    assert [word for word in command if word.startswith("--backend")] == words


def test_an_image_that_is_not_known_has_the_facts_of_the_nearest_release() -> None:
    image = "nvcr.io#nvidia/tensorrt-llm/release:1.3.0"
    cluster = {**CLUSTER, "container": {"runtime": "pyxis", "image": image}}
    llm_api = {"kv_cache_config": {"dtype": "fp8"}, "colour": "blue"}
    engine = {"backend": "pytorch", "llm_api": llm_api}
    plan = plan_of({"name": "demo", "model": {"path": "/m"}, "engine": engine}, cluster, "/runs/demo")
    assert plan.notes == (
        "TensorRT-LLM 1.3.0 is not a release known here: options and keys are assumed to be those of 1.2.1, "
        "the nearest known release",
        "passed on as written, since no release known here has them: engine.llm_api.colour",
    )
    # The preflight has no version to compare with the image's.
    assert plan.release is None
