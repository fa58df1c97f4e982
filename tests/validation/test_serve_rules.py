"""Modes of serving: what a person can get wrong about them is told with its place."""

from __future__ import annotations

import pytest

from tests.config.files import CLUSTER, JOB, Folder
from trtllm_hpc.plan.mounts import named_folders

NODE = CLUSTER + "gpus_per_node: 4\ncontainer: {tensorrt_llm_version: 0.16.0}\n"
BASE = (
    JOB
    + "model: {path: /models/llama, family: llama}\nengine:\n  backend: tensorrtllm\n  tensor_parallel: 2\n"
)
COPIES = "serve: {mode: orchestrator}\nrepository:\n  models:\n"
ONE = "  - {name: tensorrt_llm, gpu_device_ids: [0, 1]}\n"


SERVERS = (
    JOB
    + "model: {path: /models/llama}\nengine: {backend: pytorch, tensor_parallel: 2}\n"
    + "serve:\n  mode: disaggregated\n  disaggregated:\n"
)
NEWER = CLUSTER + "gpus_per_node: 4\ncontainer: {tensorrt_llm_version: 1.2.0}\n"


@pytest.mark.parametrize(
    ("line", "code", "key", "words", "hint"),
    [
        ("front: {schedule_style: generation_first}", "unknown-key", "front.schedule_style", "came", "image"),
        ("front: {otlp_config: {endpoint: x}}", "unknown-key", "front.otlp_config.endpoint", "any", ""),
        ("front: {max_retry: 2}", "unknown-key", "front.max_retry", "front's file", "max_retries"),
        ("front: {port: 8000}", "conflict", "front.port", "the plan writes", "remove it"),
        ("router: conversation", "release", "router", "came after 1.3.0rc3", "kv_cache_aware"),
        ("router_args: {tokens_per_block: 64}", "conflict", "router_args", "need the router", "set serve"),
    ],
)  # fmt: skip
def test_keys_of_the_front_that_it_does_not_have(
    files: Folder, line: str, code: str, key: str, words: str, hint: str
) -> None:
    diagnostic = files.diagnostic(f"{SERVERS}    {line}\n    kv_transfer: UCX\n", NEWER)
    assert (diagnostic.code, diagnostic.field) == (code, f"serve.disaggregated.{key}")
    assert words in diagnostic.message and hint in (diagnostic.hint or "")


def test_mooncake_and_keys_of_the_front_by_release(files: Folder) -> None:
    lines = "    kv_transfer: MOONCAKE\n    front: {max_retries: 2}\n"
    assert files.load(SERVERS + lines, NEWER).job.serve.disaggregated.front == {"max_retries": 2}  # type: ignore[union-attr]
    diagnostic = files.diagnostic(SERVERS + lines, NEWER.replace("1.2.0", "1.1.0"))
    assert (diagnostic.code, diagnostic.field) == ("release", "serve.disaggregated.kv_transfer")
    newer = NEWER.replace(
        "container: {", "container: {image: /images/tensorrt-llm-release:1.9.0, runtime: pyxis, "
    )
    style = "    kv_transfer: UCX\n    front: {schedule_style: generation_first, num_workers: 4}\n"
    assert files.load(SERVERS + style, newer.replace("tensorrt_llm_version: 1.2.0", "mounts: []")).job


@pytest.mark.parametrize(
    ("profile", "engine", "words"),
    [
        (NEWER, "backend: pytorch", "names no folder on the nodes' own disks"),
        (NEWER + "node_models_folder: /local\n", "backend: reference", "what the build stage makes of it"),
    ],
)
def test_what_cannot_be_staged(files: Folder, profile: str, engine: str, words: str) -> None:
    job = f"name: staged\nmodel: {{path: /models/llama, stage: node}}\nengine: {{{engine}}}\n"
    diagnostic = files.diagnostic(job, profile)
    assert diagnostic.field == "model.stage" and words in diagnostic.message


def test_drafts_of_each_phase_are_mounted_and_a_word_is_no_draft(files: Folder) -> None:
    draft = "{speculative_config: {decoding_type: Eagle, max_draft_len: 3, speculative_model_dir: /models/d}}"
    phase = f"{SERVERS}    generation: {{llm_api: {draft}}}\n    kv_transfer: UCX\n"
    found = dict(named_folders(files.load(phase, NEWER).job))
    assert found["engine.llm_api.speculative_config"] == "/models/d"
    job = "model: {path: /models/llama}\nengine: {backend: pytorch, llm_api: {speculative_config: eagle3}}\n"
    assert [*named_folders(files.load(JOB + job, NEWER).job)] == [("model.path", "/models/llama")]
