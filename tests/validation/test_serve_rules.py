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
    ("profile", "engine", "words"),
    [
        (NEWER, "backend: pytorch", "has no node_models_folder on the nodes' disks"),
        (NEWER + "node_models_folder: /local\n", "backend: reference", "loads the result of the build stage"),
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
