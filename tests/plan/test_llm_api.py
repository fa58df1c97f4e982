"""The command lines of ``trtllm-serve`` in every release that has the launcher."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.render.cases import plan_of
from trtllm_hpc.plan.model import Plan
from trtllm_hpc.runtime.server_spec import expand
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
    command = plan_of(job(release, backend), CLUSTER, "/runs/demo").server.spec.leader
    words = expand(command, {"address": "127.0.0.1", "port": 8000})
    assert check_words(release, words).remarks == ()


@pytest.mark.parametrize("release", WITH_SERVER, ids=lambda release: release.version)
def test_every_release_takes_the_fronts_command_line(release: Release) -> None:
    split = job(release, "pytorch", mode="disaggregated", disaggregated=PHASES)
    front = plan_of(split, CLUSTER, "/runs/demo").front
    assert front is not None
    assert check_words(release, [*front.command, "--config_file=front.yaml"]).remarks == ()


@pytest.mark.parametrize(
    ("version", "words"),
    [("0.20.0", []), ("1.1.0", ["--backend=trt"]), ("1.2.1", ["--backend=tensorrt"])],
)
def test_an_engine_is_served_by_the_backend_for_engines(version: str, words: list[str]) -> None:
    [release] = [release for release in WITH_SERVER if release.version == version]
    command = plan_of(job(release, "tensorrtllm"), CLUSTER, "/runs/demo").server.spec.leader
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


def split(version: str, engine: dict[str, Any] | None = None, **keys: Any) -> Plan:
    """The plan of a disaggregated run for an image that states this version."""
    asked = {"backend": "pytorch", "tensorrt_llm_version": version, "max_num_tokens": 4096, **(engine or {})}
    serve = {"mode": "disaggregated", "disaggregated": {"context": {}, "generation": {}, **keys}}
    job = {"name": "demo", "model": {"path": "/m"}, "engine": asked, "serve": serve}
    return plan_of(job, CLUSTER, "/runs/demo")


def configured(plan: Plan) -> list[dict[str, Any]]:
    """The configuration of the context's servers, and of the generation's."""
    return [yaml.safe_load(server.configuration or "") for server in plan.servers]


@pytest.mark.parametrize(
    ("version", "way", "runtime"),
    [
        ("1.2.1", "UCX", None),
        ("1.3.0rc3", "UCX", None),
        ("1.4.0rc1", "UCX", "CPP"),
        ("1.4.0", "UCX", "CPP"),
        ("1.4.0", "DEFAULT", None),
        ("1.4.0", "NIXL", None),
    ],
)
def test_ucx_needs_the_transceiver_of_cpp_where_that_of_python_is_the_default(
    version: str, way: str, runtime: str | None
) -> None:
    for found in configured(split(version, kv_transfer=way)):
        transceiver = found["cache_transceiver_config"]
        assert (transceiver["backend"], transceiver.get("transceiver_runtime")) == (way, runtime)


@pytest.mark.parametrize(
    ("engine", "keys", "tokens"),
    [
        ({}, {}, 4128),
        ({"max_num_tokens": None}, {}, 8224),
        ({"max_seq_len": 2000}, {}, 2016),
        ({}, {"context": {"max_num_tokens": 1024}, "generation": {"max_num_tokens": 16}}, 1056),
        ({"max_seq_len": 9000, "llm_api": {"enable_chunked_prefill": True}}, {}, 9024),
        ({"llm_api": {"kv_cache_config": {"tokens_per_block": 64}}}, {}, 4160),
        ({}, {"kv_transfer_tokens": 8192}, 8192),
        ({}, {"kv_transfer_tokens": 1000}, 1024),
        ({"tensorrt_llm_version": "1.3.0", "llm_api": {"enable_chunked_prefill": True}}, {}, None),
    ],
)
def test_both_phases_have_a_buffer_for_the_longest_prompt(
    engine: dict[str, Any], keys: dict[str, Any], tokens: int | None
) -> None:
    """More than the longest prompt, and a multiple of the KV cache's blocks."""
    for version in ("1.2.1", "1.4.0"):
        found = configured(split(version, engine, **keys))
        assert [it["cache_transceiver_config"].get("max_tokens_in_buffer") for it in found] == [tokens] * 2


def test_the_servers_tell_a_front_that_goes_by_the_kv_cache_what_they_have() -> None:
    cache = {"kv_cache_config": {"free_gpu_memory_fraction": 0.8}}
    for found in configured(split("1.2.1", {"llm_api": cache}, router="kv_cache_aware")):
        assert found["kv_cache_config"] == {"event_buffer_max_size": 1024, "free_gpu_memory_fraction": 0.8}
    for found in configured(split("1.2.1", router="load_balancing")):
        assert "kv_cache_config" not in found


@pytest.mark.parametrize(("version", "warns"), [("1.2.1", False), ("1.3.0", True), ("1.4.0", True)])
def test_a_backend_that_is_deprecated_is_noted(version: str, warns: bool) -> None:
    engine = {"backend": "pytorch", "tensorrt_llm_version": version}
    for backend in ("TRITON", "CUTLASS"):
        asked = {**engine, "llm_api": {"moe_config": {"backend": backend}}}
        notes = plan_of(
            {"name": "demo", "model": {"path": "/m"}, "engine": asked}, CLUSTER, "/runs/demo"
        ).notes
        assert any("CUTLASS replaces it" in note for note in notes) == (warns and backend == "TRITON")
