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


def test_a_mistake_elsewhere_does_not_hide_what_is_wrong_with_a_copy(files: Folder) -> None:
    """Rules read the copies of a job file that is wrong in another place, and in another copy."""
    wrong = "  - {name: b, gpu_device_ids: [2]}\n  - {name: c, gpu_device_ids: none}\n"
    found = files.diagnostics(BASE + "nmae: x\n" + COPIES + ONE + wrong, NODE)
    places = {"nmae", "repository.models[1].gpu_device_ids", "repository.models[2].gpu_device_ids"}
    assert {diagnostic.field for diagnostic in found} == places


def test_a_type_of_gpus_without_gpus(files: Folder) -> None:
    profile = NEWER.replace("gpus_per_node", "# gpus_per_node") + "gpus_per_node: 0\n"
    job = SERVERS + "    generation: {servers: 2}\n"
    phases = "phases: {context: {gpu_type: a100}, generation: {gpus_per_node: 4, gpu_type: h100}}\n"
    diagnostic = files.diagnostic(job, profile + phases)
    assert (diagnostic.field, diagnostic.value) == ("phases.context.gpu_type", "a100")


def test_phases_of_nodes_are_for_slurm(files: Folder) -> None:
    diagnostic = files.diagnostic(JOB, CLUSTER + "scheduler: local\nphases: {context: {partition: a}}\n")
    assert (diagnostic.field, diagnostic.message) == ("phases", "is for Slurm, but scheduler is local")


SERVERS = (
    JOB
    + "model: {path: /models/llama}\nengine: {backend: pytorch, tensor_parallel: 2}\n"
    + "serve:\n  mode: disaggregated\n  disaggregated:\n"
)
NEWER = CLUSTER + "gpus_per_node: 4\ncontainer: {tensorrt_llm_version: 1.2.0}\n"


@pytest.mark.parametrize(
    ("line", "code", "key", "words", "hint"),
    [
        ("context: {servrs: 2}", "unknown-key", "context.servrs", "is not a known key", "servers"),
        ("kv_transfr: UCX", "unknown-key", "kv_transfr", "is not a known key", "kv_transfer"),
    ],
)  # fmt: skip
def test_keys_that_a_phase_of_servers_does_not_have(
    files: Folder, line: str, code: str, key: str, words: str, hint: str
) -> None:
    diagnostic = files.diagnostic(f"{SERVERS}    {line}\n", NEWER)
    assert (diagnostic.code, diagnostic.field) == (code, f"serve.disaggregated.{key}")
    assert words in diagnostic.message and hint in (diagnostic.hint or "")


@pytest.mark.parametrize(
    ("line", "code", "key", "words", "hint"),
    [
        ("front: {schedule_style: generation_first}", "unknown-key", "front.schedule_style", "came", "image"),
        ("front: {otlp_config: {endpoint: x}}", "unknown-key", "front.otlp_config.endpoint", "any", ""),
        ("front: {max_retry: 2}", "unknown-key", "front.max_retry", "front's file", "max_retries"),
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


def test_what_a_phase_has_of_its_own_is_accepted(files: Folder) -> None:
    own = "{servers: 2, tensor_parallel: 1, max_num_tokens: 4096, llm_api: {enable_attention_dp: true}}"
    job = files.load(f"{SERVERS}    context: {own}\n    kv_transfer: UCX\n", NEWER).job
    assert job.with_phase(job.serve.disaggregated.context).engine.world_size == 1  # type: ignore[union-attr]


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
